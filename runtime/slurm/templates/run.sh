export XDG_CACHE_HOME=$scratch/fourfold/cache  # where `data: standard-library` is built
export MASTER_PORT=$(( @FIRST_PORT@ + SLURM_JOB_ID % @PORTS@ ))  # jobs that share a node do not meet
job=@JOB@
name=@NAME@
out=$scratch/fourfold/runs/$name  # checkpoints, metrics
if [ ! -f "$job" ]; then
    printf 'no job file %s in %s: submit from the directory it is relative to\n' "$job" "$PWD" >&2
    exit 2
fi

srun --export=ALL --nodes=@NODES@ --ntasks=@RANKS@ --ntasks-per-node=@TASKS@ --distribution=@DISTRIBUTION@ \
    --kill-on-bad-exit=1 "${layout[@]}" \
    fourfold train "$job" \
@SETTINGS@
    --out "$out"

# Two minutes before the time limit SLURM warns the ranks, and the run ends in a checkpoint. Let it go on
# in another job; delete these lines if you would rather submit it yourself.
if grep -qs '"SIGUSR1"' "$out/stopped.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
