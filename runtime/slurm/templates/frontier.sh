#!/bin/bash -l
#SBATCH --account=CHANGE_ME
#SBATCH --job-name=@JOB_NAME@
#SBATCH --partition=batch
#SBATCH --time=02:00:00
#SBATCH --nodes=@NODES@
#SBATCH --ntasks=@RANKS@
#SBATCH --ntasks-per-node=@TASKS@
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=7
#SBATCH --network=disable_rdzv_get
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
# Frontier (OLCF), nodes of eight MI250X dies. Set the account and the time (at most 2 h on up to 91 nodes,
# 6 h on up to 183, 12 h on more), check the environment, then sbatch this file. Submitted or requeued
# again it continues the run from its last checkpoint.
# Written from OLCF's documentation, looked up on 2026-11-20 (addresses: docs/howto/cluster.md). Not run there by us.
set -euo pipefail

# ---- environment of this machine: check before the first run ---------------------------------------
scratch=/lustre/orion/$SLURM_JOB_ACCOUNT/scratch/$USER
set +u  # modules and activate scripts read variables that need not be set
module load PrgEnv-gnu/8.7.0 cpe/26.03 miniforge3/23.11.0-0 rocm/7.1.1 craype-accel-amd-gfx90a
module load rccl-net-plugin  # RCCL over Slingshot instead of TCP; after rocm
export LD_LIBRARY_PATH=$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH  # the cpe module is not the default one
source "${FOURFOLD_VENV:-$scratch/fourfold/venv}/bin/activate"
set -u

# The plugin's module sets most of these too; here they are on record.
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3  # connections are set up over Slingshot; if it hangs: hsn0
export GLOO_SOCKET_IFNAME=hsn0  # checkpoints and traces are agreed on over gloo, which takes one interface
export NCCL_CROSS_NIC=1  # rings and trees may use another NIC on the next node: faster on many nodes
export NCCL_NET_GDR_LEVEL=PHB  # the NIC reads and writes GPU memory
export HSA_FORCE_FINE_GRAIN_PCIE=1  # lets other devices write into GPU memory
export FI_MR_CACHE_MONITOR=kdreg2  # how libfabric learns of freed memory; memhooks can deadlock
export FI_CXI_DISABLE_HOST_REGISTER=1  # libfabric makes no HIP calls that can deadlock with RCCL's
export FI_CXI_DEFAULT_CQ_SIZE=131072  # event queues long enough for many peers
export FI_CXI_DEFAULT_TX_SIZE=2048  # room for many unexpected rendezvous messages
export FI_CXI_RX_MATCH_MODE=hybrid  # match messages in software when the NIC's lists are full
export FI_CXI_RDZV_PROTO=alt_read  # faster for RCCL at scale; needs --network=disable_rdzv_get above
export FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_GET_MIN=0 FI_CXI_RDZV_EAGER_SIZE=0  # send nothing unasked for
if (( SLURM_JOB_NUM_NODES > 1 )); then
    export NCCL_NET=OFI  # without the plugin fail at once; on one node the network is not set up
fi
addresses=$(hostname -i)
export MASTER_ADDR=${addresses%% *}  # rank 0 is on the node that runs this script
# Seven cores: the eighth of each L3 region belongs to the system. closest: the die next to these cores.
layout=(--cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest)
# ---- end of the environment ------------------------------------------------------------------------

