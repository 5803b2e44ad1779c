#!/bin/bash

# Parameters
#SBATCH --account=ml
#SBATCH --comment='snakemake in study, b'
#SBATCH --constraint=h100
#SBATCH --cpus-per-task=6
#SBATCH --dependency=afterok:1234
#SBATCH --exclude=n7
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name='measure p +3'
#SBATCH --mail-type=FAIL
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/shared/b/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=normal
#SBATCH --requeue
#SBATCH --reservation=sweep
#SBATCH --signal=B:USR2@30
#SBATCH --switches=1
#SBATCH --time=50
#SBATCH --wckey=submitit

# setup
trap '(( ${#BASH_SOURCE[@]} > 1 )) || { echo "a line of slurm_setup failed: $BASH_COMMAND" >&2; exit 78; }' ERR
module load cuda/12.8
source site.sh
trap - ERR

# command
export SUBMITIT_EXECUTOR=slurm
exec python pack
