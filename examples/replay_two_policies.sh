# 40 requests of the bundled trace, under two policies, with a report of both.
set -e
.venv/bin/mirage models out/models
.venv/bin/mirage replay configs/demo.yaml --trace sample --policy static,mirage --limit 40 \
    --output out/examples/replay
