# Three models on one GH200, policy by policy: computed, not measured.
set -e
.venv/bin/mirage simulate configs/experiments/c1.yaml --seeds 0 --output out/examples/simulate
