#!/bin/sh
# On the machine with the GPU, from the project's folder: sh benchmarks/gpu/run.sh FOLDER [PART ...]
# Installs the wheels of gpu-check/wheels.tar.xz beside the torch that is there, without network,
# and runs these parts, by default the first six: kernels measure beside trace probe deepspeed watch
# training.
# Each writes to FOLDER as it goes, and all that is said goes to FOLDER/run.log; no part ends the
# others. Watch and training are for a second call.
# FIRST=12 begins with that layout, LIMIT_S bounds measure; GPU=cpu tries it all without a GPU.
set -u
folder=${1:?the folder for what is found}
shift
mkdir -p "$folder"
python=${PYTHON:-python3}
site=$PWD/gpu-check/site
export PYTHONUNBUFFERED=1

said() { echo "== $(date -u +%T) $*"; }

gpu_here() { (cd benchmarks/gpu && "$python" -c 'import measure; print(measure.gpu_here())'); }

beside() {
    "$python" benchmarks/training_step.py --gpu "${GPU:-$(gpu_here)}" --model tinyllama_1b \
        --seq-length 2048 --micro-batch-size 4 --gradient-accumulation-steps 2 --turns 1 \
        --engine "$1" --beside liger --compile --optimizer-precision bf16
}

part() {
    case $1 in
    measure) "$python" benchmarks/gpu/measure.py "$folder" ${GPU:+--gpu "$GPU"} \
        --first "${FIRST:-0}" --limit-s "${LIMIT_S:-330}" ;;
    trace) "$python" benchmarks/gpu/measure.py "$folder" ${GPU:+--gpu "$GPU"} --trace ;;
    kernels) "$python" -m scaling check "$folder/kernels.json" --only facts,kernels,meters ;;
    probe) "$python" benchmarks/gpu/measure.py "$folder" ${GPU:+--gpu "$GPU"} --probe ;;
    watch) "$python" benchmarks/gpu/measure.py "$folder" ${GPU:+--gpu "$GPU"} --watch ;;
    beside) beside torch ;;
    deepspeed) beside deepspeed ;;
    training) "$python" -m scaling check "$folder/training.json" --only training ;;
    *) echo "there is no part $1" ;;
    esac
}

# Not a virtual environment: made from another one, as torch may be in, it would not see torch.
{
    said install
    "$python" -m tarfile -e gpu-check/wheels.tar.xz gpu-check/wheels &&
        "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
            --no-compile --upgrade --target "$site" gpu-check/wheels/*.whl
    export PYTHONPATH="$PWD:$site"
    for name in ${*:-kernels measure beside trace probe deepspeed}; do
        said "$name"
        part "$name"
        said "$name ended with exit code $?"
        rm -f "$folder"/kernels.txt # run.log has it, and few files may come back
    done
} 2>&1 | tee -a "$folder/run.log"
