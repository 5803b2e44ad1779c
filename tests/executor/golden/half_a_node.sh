#!/bin/bash

# Parameters
#SBATCH --comment='snakemake in study, b'
#SBATCH --gres=gpu:a100:4
#SBATCH --job-name='measure p +3'
#SBATCH --mem=250000M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=/shared/b/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@30
#SBATCH --time=22
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
exec python pack
