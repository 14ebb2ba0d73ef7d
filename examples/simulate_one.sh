# Two models on one large GPU, policy by policy: computed, not measured.
set -e
.venv/bin/mirage simulate configs/experiments/one.yaml --seeds 0 --output out/examples/simulate
