#!/bin/bash -l
#SBATCH --account=CHANGE_ME
#SBATCH --uenv=pytorch/CHANGE_ME:/user-environment
#SBATCH --view=default
#SBATCH --job-name=@JOB_NAME@
#SBATCH --partition=normal
#SBATCH --time=02:00:00
#SBATCH --nodes=@NODES@
#SBATCH --ntasks=@RANKS@
#SBATCH --ntasks-per-node=@TASKS@
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=72
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
# Alps (CSCS: Clariden, Daint), nodes of four GH200. Set the account, the uenv's version (uenv image find
# pytorch) and the time, check the environment, then sbatch this file. Submitted or requeued again it
# continues the run from its last checkpoint.
# Written from CSCS's documentation, looked up on 2026-11-20 (addresses: docs/howto/cluster.md). Not run there by us.
set -euo pipefail

# ---- environment of this machine: check before the first run ---------------------------------------
scratch=$SCRATCH
set +u  # activate scripts read variables that need not be set
source "${FOURFOLD_VENV:-$scratch/fourfold/venv}/bin/activate"
set -u

export NCCL_SOCKET_IFNAME=hsn  # connections are set up over Slingshot's interfaces
export GLOO_SOCKET_IFNAME=hsn0  # checkpoints and traces are agreed on over gloo, which takes one interface
export NCCL_CROSS_NIC=1  # rings and trees may use another NIC on the next node: faster on many nodes
export NCCL_NET_GDR_LEVEL=PHB  # the NIC reads and writes GPU memory: both belong to one module
export FI_CXI_DISABLE_HOST_REGISTER=1  # libfabric makes no CUDA calls that can deadlock with NCCL's
export FI_MR_CACHE_MONITOR=userfaultfd  # how libfabric learns of freed memory; memhooks can deadlock
export FI_CXI_DEFAULT_CQ_SIZE=131072  # event queues long enough for many peers
export FI_CXI_DEFAULT_TX_SIZE=32768  # room for many messages on their way
export FI_CXI_RX_MATCH_MODE=software  # match messages in software: the NIC's lists are finite
# Send nothing unasked for: cures hangs, and with NCCL 2.27 or later wrong sums on GH200 (NVIDIA/nccl#2001).
export FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_GET_MIN=0 FI_CXI_RDZV_EAGER_SIZE=0
if (( SLURM_JOB_NUM_NODES > 1 )); then
    export NCCL_NET="AWS Libfabric"  # without the plugin fail at once instead of using slow TCP
fi
export CUDA_CACHE_DISABLE=1 TRITON_HOME=/dev/shm  # no small compiled files on the parallel file system
export MASTER_ADDR; MASTER_ADDR=$(hostname)  # rank 0 is on the node that runs this script
layout=(--cpus-per-task=72 --gpus-per-task=1)  # a Grace CPU and its Hopper GPU
# ---- end of the environment ------------------------------------------------------------------------

