#!/bin/bash
# What a reader's machine (tests/docs/reader_machine.py) has in place of what it cannot have: a shell for each name that leads here.
# Whatever it can have is called with the reader's own words.
set -euo pipefail
[ -e /etc/machine-of-a-reader ] || { echo "this is nobody's machine but its owner's"; exit 99; }

name=${0##*/}
elsewhere() { PATH=${PATH#"$READER_BIN:"} "$@"; }
refuse() { echo "$name: $*" >&2; exit 98; }

# Whole words of ours, or what a page leaves to the reader.
ours() { "$READER_PYTHON" -I -S "$READER_CALL" "$READER_SOCKET" "$@"; }

# Until a condition holds, for as long as a busy machine may take.
await() {
    for _ in $(seq 3000); do "$@" && return; sleep 0.05; done
    refuse "never came true: $*"
}

# What serves until it is stopped is left to itself once it serves.
serving() {
    local log=$1 port=$2; shift 2
    "$@" >> "$log" 2>&1 &
    await answers "$port" "$log" $!
}
answers() {
    (: < "/dev/tcp/127.0.0.1/$1") 2> /dev/null || { kill -0 "$3" 2> /dev/null || { cat "$2" >&2; refuse "it ended"; }; false; }
}

# What serves until it is stopped is stopped as by systemd once its log has these words; it must end with 0.
stopped() {
    local log=$1 words=$2 code=0; shift 2
    (exec "$READER_PYTHON" -I -S "$READER_CALL" "$READER_SOCKET" "$@" > "$log" 2>&1) &
    await logged "$log" "$words" $!
    kill "$!"
    wait "$!" || code=$?
    [ "$code" = 0 ] || { cat "$log" >&2; refuse "it ended with $code"; }
}
logged() { grep -qF "$2" "$1" || { kill -0 "$3" 2> /dev/null || { cat "$1" >&2; refuse "it ended"; }; false; }; }

# The value of an option among words.
option() {
    local wanted=$1; shift
    while [ $# -gt 1 ]; do [ "$1" = "$wanted" ] && { echo "$2"; return; }; shift; done
}

# A run is short and small; that its words are understood is looked at before.
fedpatch() {
    case "$*" in
        *--print-config* | *--help* | *--summary*) ours fedpatch "$@" ;;
        "demo "* | demo)
            ours fedpatch "$@" --print-config > /dev/null
            ours fedpatch "$@" --devices 1 --rounds 1 --target-ua none --grace-s 100 --recruit-deadline-s 100 ;;
        "run "*)
            ours fedpatch "$@" --print-config > /dev/null
            local small=(--devices "$READER_DEVICES" --rounds "${READER_ROUNDS:-1}" --target-ua none --wait-s 200 --grace-s 100 --recruit-deadline-s 100)
            case ${READER_RUNS:-} in
                on) serving run.log 9464 ours fedpatch "$@" ;;  # for readers of its console or its metrics
                later) { ours fedpatch "$@" "${small[@]}" &> run.log && code=0 || code=$?; echo $code > run.code; } & ;;  # the page begins its devices after it
                *) ours fedpatch "$@" "${small[@]}" ;;
            esac ;;
        "stop "*) ours fedpatch "$@" || [ $? = 2 ] ;;  # 2: the page's run has ended
        "resume "*) ours fedpatch "$@" ${READER_ROUNDS:+--rounds "$READER_ROUNDS"} ;;
        "doctor "*) ours fedpatch "$@" --devices "$READER_DEVICES" ;;
        "device add "* | "device rotate "*)  # the bundle of the line before has been carried to its device
            rm -f "$(option --out "$@")"; ours fedpatch "$@" ;;
        "simulate fleet "*) ours fedpatch "$@" --devices 30 --rounds 2 ;;
        "simulate compare "*) ours fedpatch "$@" --clients 4 --rounds 2 --seeds 1 --task "$(small_task "$@")" --workers 1 ;;
        # Noise on the mean of a few clients would make the model infinite.
        "simulate "*" --dp "*) ours fedpatch "$@" --clients 60 --rounds 2 --workers 1 ;;
        "simulate "*) ours fedpatch "$@" --clients 4 --rounds 2 --task "$(small_task "$@")" --target-ua 0.2 --workers 1 ;;
        "watch "*--once* ) ours fedpatch "$@" ;;
        "watch "* | watch) watching "$@" ;;
        "console "*) stopped console.log "console: http" fedpatch "$@" ;;
        "ca serve"*) serving serve.log 8885 ours fedpatch "$@" ;;
        "device invite "*) ours fedpatch "$@" > word; cat word ;;
        "metrics "*--serve*) stopped metrics.log "last metrics of run" fedpatch "$@" ;;
        "broker --port "*) serving broker.log "$3" ours fedpatch "$@" ;;
        *) ours fedpatch "$@" ;;
    esac
}
small_task() {
    local task; task=$(option --task "$@")
    case $task in *:*) echo "$task" ;; *) echo digits ;; esac
}
# Looked at in a terminal until it shows the fleet, and then stopped as a reader does.
watching() {
    local code=0
    : > watched
    { await grep -qE "kitchen|devices" watched; printf '\003'; sleep 1; } |
        TERM=xterm script --quiet --return --flush --command "$0 --in-terminal ${*@Q}" watched > /dev/null || code=$?
    [ "$code" = 130 ] || { cat watched >&2; refuse "it ended with $code"; }
}

agent() {
    case "$*" in
        "run "*)
            ours fedpatch-agent "$@" --print-config > /dev/null
            local place; place=$(ours fedpatch-agent "$@" --print-config | sed -n 's/^state_dir *= *"\?\([^" ]*\).*/\1/p')
            [ ! -e "$place/status.json" ] || stop_agent "$place"
            ours fedpatch-agent "$@" --admission always --nice 0 >> agents.log 2>&1 &
            await ready "$place" $! ;;
        "bus "*) stopped bus.log "connected to the broker" fedpatch-agent "$@" ;;
        "status"*) ours fedpatch-agent "$@" || [ $? = 1 ] ;;  # 1: of an agent that does not run
        "enrol --from "*)  # ends after the approval, which is on a later line
            : > enrol.log
            ours fedpatch-agent "${@/#WORD/$(cat word)}" >> enrol.log 2>&1 &
            await logged enrol.log "waiting for the operator's approval" $! ;;
        *) ours fedpatch-agent "$@" ;;
    esac
}
ready() {
    { grep -qs '"connected": true' "$1/status.json" &&
        { [ -n "${READER_CONNECTED:-}" ] || ! grep -qs '"tasks": \[\]' "$1/status.json"; }; } ||
        { kill -0 "$2" 2> /dev/null || { cat agents.log >&2; refuse "it ended"; }; false; }
}

# One that another line of the page began.
stop_agent() {
    local process; process=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$1/status.json")
    if kill "$process" 2> /dev/null; then await gone "$process"; fi
    rm "$1/status.json"
}
gone() { [ "$1" = 0 ] || ! kill -0 "$1" 2> /dev/null; }

# A service of ours, or of the broker: nobody else's is spoken of.
unit() {
    local one=${1%.service}
    case $one in
        mosquitto) ;;
        fedpatch-agent | fedpatch-coordinator) [ -e "/etc/systemd/system/$one.service" ] || refuse "there is no unit $one" ;;
        *) refuse "$one is no service of ours" ;;
    esac
}
mosquitto_of_system() {
    local config=/etc/mosquitto/mosquitto.conf
    local process; process=$(cat /etc/mosquitto/process 2> /dev/null || echo 0)
    if [ "$1" = -HUP ]; then
        kill -HUP "$process"; await grep -q "Reloading config" /etc/mosquitto/log
    else
        if gone "$process"; then :; else kill "$process"; await gone "$process"; fi
        serving /etc/mosquitto/log "$(sed -n 's/^listener \([0-9]*\).*/\1/p' $config | tail -1)" /usr/sbin/mosquitto -c $config
        echo $! > /etc/mosquitto/process
    fi
}

case $name in
    fedpatch) if [ "${1:-}" = --in-terminal ]; then ours fedpatch "${@:2}"; else fedpatch "$@"; fi ;;
    fedpatch-agent) agent "$@" ;;
    fedpatch-relay)  # its two brokers do not exist here, so only the options are checked
        case "$*" in
            "run "*) ours fedpatch-relay "$@" --print-config > /dev/null ;;
            "status"*) ours fedpatch-relay "$@" || [ $? = 2 ] ;;  # 2: no relay ever ran here
            *) ours fedpatch-relay "$@" ;;
        esac ;;
    python | python3)
        case "$1 $2" in
            "-m venv") elsewhere python3 -m venv --without-pip "${@:3}"; ln -sf "$READER_BIN/pip" "${@: -1}/bin/pip" ;;
            "-m pytest")
                for word in "${@:3}"; do
                    [[ $word != tests/* || -e $word ]] || refuse "there are no tests in $word"
                    for marker in ${word//not / }; do [[ $word != not\ * || $marker = and ]] || grep -q "\"$marker[:(]" pyproject.toml || refuse "no marker $marker"; done
                done ;;
            "-m studies.paper")
                case "$*" in
                    *--summary*) exec "$READER_PYTHON" "$@" ;;
                    *" fig3 "* | *" fig4 "*) exec "$READER_PYTHON" "${@/--rounds/--seeds}" --seeds 1 --summary --results results ;;
                    *) exec "$READER_PYTHON" "$@" --seeds 1 --results results ;;  # has all results, so nothing is computed
                esac ;;
            "-m studies.robustness") exec "$READER_PYTHON" "$@" --clients 4 --rounds 1 --seeds 1 --rules mean,centred --attacks sign --workers 1 ;;
            "-m "*) ours parse "${@:2}" ;;
            *) exec "$READER_PYTHON" "$@" ;;
        esac ;;
    pip)  # tests/test_wheel.py installs; here it is looked at whether there are such parts
        [ "$1" != wheel ] || exec "$READER_PYTHON" -m pip "$@" --no-build-isolation  # which would need an index
        "$READER_PYTHON" - "$READER_ROOT" "$@" <<'END'
import re, sys, tomllib
parts = tomllib.load(open(f"{sys.argv[1]}/pyproject.toml", "rb"))["project"]["optional-dependencies"]
assert set(re.search(r"^fedpatch\[(.*)\]$", sys.argv[-1])[1].split(",")) <= set(parts), sys.argv
END
        ln -sf "$READER_BIN/fedpatch-agent" "${0%/*}/" ;;
    make)
        elsewhere make -n "$@" > made
        [ "$*" != demo ] || fedpatch demo --out demo-out ;;
    sudo)
        [ "$1" != -n ] || shift
        [ "$1" != -u ] || { elsewhere id "$2" > /dev/null; shift 2; }
        exec /usr/bin/env "$@" ;;
    ssh)
        while [[ $1 == -* ]]; do shift; done
        elsewhere getent hosts "${1#*@}" > /dev/null || refuse "no such host: $1"
        # The commands of such a host know its settings and its state directory.
        shift; cd "$READER_HOME/page"
        export FEDPATCH_AGENT_DATA=shard:0/10 FEDPATCH_AGENT_BROKER=mqtts://broker.local
        exec bash -c "$*" ;;
    git)
        case "$*" in
            "clone ... "*)
                mkdir "$3" && ln -s "$READER_ROOT"/* "$3/"
                for one in ansible results; do rm "$3/$one" && cp -r "$READER_ROOT/$one" "$3/"; done
                mkdir -p "$3/.venv" && ln -s "$READER_BIN" "$3/.venv/bin" ;;
            pull) [ -e Makefile ] || refuse "this is not the project's folder" ;;
            *) refuse "no stand-in for: $*" ;;
        esac ;;
    apt) [ "$1" = install ] && [[ " mosquitto python3-venv " == *" $2 "* ]] || refuse "is that a package: $2" ;;
    systemctl)
        case "$*" in
            daemon-reload) for one in /etc/systemd/system/fedpatch*.service; do [ ! -e "$one" ] || elsewhere systemd-analyze verify "$one"; done ;;
            "restart mosquitto") mosquitto_of_system -TERM ;;
            "reload mosquitto") mosquitto_of_system -HUP ;;
            "reload fedpatch-agent") unit "$2"; grep -q '^ExecReload=/bin/kill -HUP' /etc/systemd/system/fedpatch-agent.service ;;
            "enable --now "* | "disable --now "*) unit "$3" ;;
            "status "* | "start "* | "stop "* | "restart "*) unit "$2" ;;
            *) refuse "no stand-in for: $*" ;;
        esac ;;
    systemd-analyze) unit "$2"; elsewhere systemd-analyze "$1" --offline=true "/etc/systemd/system/$2" ;;
    journalctl) unit "$2"; elsewhere journalctl --no-pager --lines 1 "${@/-f/--quiet}" ;;
    mosquitto)
        port=$(option -p "$@"); config=$(option -c "$@")
        serving mosquitto.log "${port:-$(sed -n 's/^listener \([0-9]*\).*/\1/p' "$config" | tail -1)}" elsewhere mosquitto "$@" ;;
    mosquitto_passwd) touch "$1"; elsewhere mosquitto_passwd -b "$@" word ;;
    ansible | ansible-playbook | ansible-vault)
        done=$READER_HOME/$(echo "$*" | md5sum | cut -c1-32)  # seconds each, and the same words are on two pages
        [ ! -e "$done" ] || exit 0
        words=("${@/--ask-vault-pass/--vault-password-file=$READER_BIN/vault-word}")
        case $name in
            ansible) words+=(--list-hosts) ;;
            ansible-playbook)
                words+=(--syntax-check)
                [[ " $* " != *" ... "* ]] || words=(-i inventories/mine site.yml "${words[@]/.../--diff}") ;;
            ansible-vault) words+=("--vault-password-file=$READER_BIN/vault-word") ;;
        esac
        [ ! -d ansible ] || [ "$name" = ansible-vault ] || cd ansible
        if [ "$name $1" = "ansible-vault create" ]; then  # whose editor wants a terminal
            script --quiet --return --command "${READER_PYTHON%/*}/$name ${words[*]@Q}" /dev/null < /dev/null
        else
            "${READER_PYTHON%/*}/$name" "${words[@]}"
        fi
        touch "$done" ;;
    *) refuse "no stand-in for it" ;;
esac
