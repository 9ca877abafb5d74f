#!/bin/bash
# Plays one simulation on several machines, which ssh reaches without a password:
#   HOSTS="node-1 node-2" PROCESSES=4 ./simulate_over_ssh.sh --task mnist --clients 200 --out DIR
# fedpatch is in the same directory of each machine: FEDPATCH_BIN, by default ~/.venv/bin. DIR is on the first of them.
set -euo pipefail
read -r -a hosts <<< "$HOSTS"
bin=${FEDPATCH_BIN:-\$HOME/.venv/bin}
given="OMP_NUM_THREADS=1 ${GLOO_SOCKET_IFNAME:+GLOO_SOCKET_IFNAME=$GLOO_SOCKET_IFNAME}"
words=$(printf ' %q' -m fedpatch simulate "$@")
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
for rank in "${!hosts[@]}"; do
    group="--nnodes ${#hosts[@]} --node-rank $rank --nproc-per-node ${PROCESSES:-1} --master-addr ${hosts[0]#*@} --master-port ${PORT:-29500}"
    # -tt: the ranks end when this script does.
    ssh -tt "${hosts[rank]}" "exec env $given $bin/torchrun $group$words" < /dev/null &
done
code=0
for _ in "${hosts[@]}"; do
    wait -n || code=$?
done
exit "$code"
