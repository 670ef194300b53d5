export XDG_CACHE_HOME=$scratch/fourfold/cache  # where `data: standard-library` is built
export MASTER_PORT=$(( @FIRST_PORT@ + SLURM_JOB_ID % @PORTS@ ))  # jobs that share a node do not meet
job=@JOB@
name=@NAME@
out=$scratch/fourfold/runs/$name  # checkpoints, metrics
if [ ! -f "$job" ]; then
    printf 'no job file %s in %s: submit from the directory it is relative to\n' "$job" "$PWD" >&2
    exit 2
fi

# A rank that is killed or fails takes all others with it. They start again in this allocation, from the newest
# checkpoint, unless another start is no use (2: bad input, 3: it would fail the same way) or two in a row
# have saved nothing. If a node is lost SLURM ends the job and puts it back into the queue.
newest() { find "$out/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1 || true; }
export FOURFOLD_ATTEMPT=0
in_vain=0
saved=$(newest)
until srun --export=ALL --nodes=@NODES@ --ntasks=@RANKS@ --ntasks-per-node=@TASKS@ --distribution=@DISTRIBUTION@ \
    --kill-on-bad-exit=1 "${layout[@]}" \
    fourfold train "$job" \
@SETTINGS@
    --out "$out"
do
    code=$?
    before=$saved
    saved=$(newest)
    if [ "$saved" = "$before" ]; then in_vain=$(( in_vain + 1 )); else in_vain=0; fi
    if (( code == 2 || code == 3 || in_vain > 1 )); then
        exit "$code"
    fi
    FOURFOLD_ATTEMPT=$(( FOURFOLD_ATTEMPT + 1 ))
    printf 'fourfold: srun ended with exit code %s; start %s in this job\n' "$code" "$(( FOURFOLD_ATTEMPT + 1 ))" >&2
done

# Two minutes before the time limit SLURM warns the ranks, and the run ends in a checkpoint. Let it go on
# in another job; delete these lines if you would rather submit it yourself.
if grep -qs '"SIGUSR1"' "$out/stopped.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
