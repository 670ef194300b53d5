#!/bin/bash -l
#SBATCH --account=CHANGE_ME
#SBATCH --job-name=@JOB_NAME@
#SBATCH --time=02:00:00
#SBATCH --nodes=@NODES@
#SBATCH --ntasks=@RANKS@
#SBATCH --ntasks-per-node=@TASKS@
#SBATCH --exclusive@GPUS@
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
# A machine that Fourfold has no template for. Set the account (or delete that line) and the time, add the
# partition, load your PyTorch below, then sbatch this file. Submitted or requeued again it continues
# the run from its last checkpoint.
set -euo pipefail

# ---- environment of this machine: check before the first run ---------------------------------------
scratch=${SCRATCH:-$PWD}  # a file system that all nodes see and that takes large files
set +u  # modules and activate scripts read variables that need not be set
# module load pytorch
source "${FOURFOLD_VENV:-$scratch/fourfold/venv}/bin/activate"
set -u

# Name the interface if hosts cannot connect (ip -brief address lists them):
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
export MASTER_ADDR; MASTER_ADDR=$(hostname)  # rank 0 is on the node that runs this script
cores=$(( ${SLURM_CPUS_ON_NODE:-1} / @TASKS@ ))  # without this SLURM may bind a rank to one core
layout=(--cpus-per-task="$(( cores > 1 ? cores : 1 ))")
# ---- end of the environment ------------------------------------------------------------------------

