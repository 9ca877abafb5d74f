#!/bin/sh
# Renames a database that mosquitto cannot read, as after a power cut, to mosquitto.db.damaged, so that the next start succeeds.
# The unit of mosquitto calls it after a failure (mosquitto-limits.conf); argument: the folder of the database.
# Lost with the database: retained messages and waiting messages. Members of a fleet publish theirs again.
set -eu
[ "${SERVICE_RESULT:-}" != success ] || exit 0
database=${1:-/var/lib/mosquitto}/mosquitto.db
[ -e "$database" ] || exit 0
trial=$(mktemp -d)
broker=
clean_up() {
    if [ -n "$broker" ]; then
        # Mosquitto saves its database as it ends, so the folder must still exist; a signal during its start has no effect.
        tries=0
        while kill "$broker" 2> /dev/null && [ "$((tries += 1))" -le 100 ]; do sleep 0.1; done
        kill -KILL "$broker" 2> /dev/null || :
        wait "$broker" || :
    fi
    rm -rf "$trial"
}
trap clean_up EXIT
chmod 0755 "$trial"
cp "$database" "$trial/mosquitto.db"
chmod 0644 "$trial/mosquitto.db"
printf 'listener 0 %s/socket\npersistence true\npersistence_location %s/\nautosave_interval 0\n' "$trial" "$trial" > "$trial/trial.conf"
chmod 0644 "$trial/trial.conf"
[ "$(id -u)" -ne 0 ] || chown -R mosquitto "$trial" # started by root, mosquitto gives its rights up
: > "$trial/log" # the loop below may read it before the shell of mosquitto opens it
PATH=$PATH:/usr/sbin mosquitto -c "$trial/trial.conf" > "$trial/log" 2>&1 &
broker=$!
for _ in $(seq 600); do
    kill -0 "$broker" 2>/dev/null || break
    ! grep -q "Opening unix listen socket" "$trial/log" || exit 0 # it has read the database: the failure has another cause
    sleep 0.1
done
if grep -q "Couldn't open database" "$trial/log"; then
    mv -f "$database" "$database.damaged"
    echo "$database cannot be read: set aside as $database.damaged; mosquitto begins with an empty one" >&2
fi
