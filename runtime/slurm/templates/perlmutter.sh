#!/bin/bash -l
#SBATCH --account=CHANGE_ME
#SBATCH --job-name=@JOB_NAME@
#SBATCH --constraint=@CONSTRAINT@
#SBATCH --qos=regular
#SBATCH --time=02:00:00
#SBATCH --nodes=@NODES@
#SBATCH --ntasks=@RANKS@
#SBATCH --ntasks-per-node=@TASKS@
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
# Perlmutter (NERSC), GPU nodes of four A100. Set the account and the time, check the environment, then
# sbatch this file. Submitted or requeued again it continues the run from its last checkpoint.
# Written from NERSC's documentation, looked up on 2026-11-20 (addresses: docs/howto/cluster.md). Not run there by us.
set -euo pipefail

# ---- environment of this machine: check before the first run ---------------------------------------
scratch=$SCRATCH
set +u  # modules and activate scripts read variables that need not be set
module load pytorch  # PyTorch, NCCL and NCCL's plugin for Slingshot
source "${FOURFOLD_VENV:-$scratch/fourfold/venv}/bin/activate"
set -u

export NCCL_SOCKET_IFNAME=hsn  # connections are set up over Slingshot's interfaces
export GLOO_SOCKET_IFNAME=hsn0  # checkpoints and traces are agreed on over gloo, which takes one interface
export NCCL_CROSS_NIC=1  # rings and trees may use another NIC on the next node: faster on many nodes
export NCCL_NET_GDR_LEVEL=PHB  # the NIC reads and writes GPU memory: both are on one PCIe host bridge
export FI_CXI_DISABLE_HOST_REGISTER=1  # libfabric makes no CUDA calls that can deadlock with NCCL's
export FI_MR_CACHE_MONITOR=userfaultfd  # how libfabric learns of freed memory; memhooks can deadlock
export FI_CXI_DEFAULT_CQ_SIZE=131072  # event queues long enough for many peers
if (( SLURM_JOB_NUM_NODES > 1 )); then
    export NCCL_NET="AWS Libfabric"  # without the plugin fail at once instead of using slow TCP
fi
export CUDA_VISIBLE_DEVICES=3,2,1,0  # SLURM gives task 0 the cores next to GPU 3, and so on
export MASTER_ADDR; MASTER_ADDR=$(hostname)  # rank 0 is on the node that runs this script
layout=(--cpus-per-task=32 --cpu-bind=cores --gpus-per-node=4 --gpu-bind=none)  # every task sees all GPUs
# ---- end of the environment ------------------------------------------------------------------------

