#!/usr/bin/env bash
# Runs a Slurm cluster whose only node is this machine, to try the job scripts. It needs Debian or
# Ubuntu and root, but neither systemd nor cgroups, so it also works in a container.
#   eval "$(bash scripts/slurm/local-cluster.sh start)"
#       installs Slurm if it is missing, starts it, and exports SLURM_CONF
#   bash scripts/slurm/local-cluster.sh stop
#       ends it with all its jobs, and removes its folder

set -euo pipefail

# Everything it writes is here. Only root can write to /run, so nobody else can prepare this folder.
folder=/run/mt-slurm
# Not Slurm's usual ports, because a real slurmd may be running.
slurmctld_port=16817
slurmd_port=16818
seconds_to_wait=30

say() { printf '== %s\n' "$*" >&2; }
give_up() { printf 'error: %s\n' "$*" >&2; exit 2; }

install_missing() {
    local name missing=
    # One by one: of several names, command -v is content with any.
    for name in slurmctld slurmd sbatch munged mungekey; do
        command -v "$name" >/dev/null || missing=1
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null \
        || give_up "Slurm is not installed, and there is no apt-get to install it"
    say "installing slurm-wlm and munge"
    export DEBIAN_FRONTEND=noninteractive
    # To stderr: the caller evaluates stdout.
    { apt-get update -q && apt-get install -q -y --no-install-recommends slurm-wlm munge; } >&2 \
        || give_up "apt-get could not install slurm-wlm and munge, see its message above"
}

write_config() {
    local name cpus memory
    name=$(uname -n)
    name=${name%%.*}
    cpus=$(getconf _NPROCESSORS_ONLN) # not nproc, which obeys OMP_NUM_THREADS
    memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
    cat >"$folder/slurm.conf" <<CONF
ClusterName=mt
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$slurmctld_port
SlurmdPort=$slurmd_port
# Listen only on the host's address above, which is loopback.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# A requeued job waits until the credentials of its last start expire, by default two minutes.
AuthInfo=socket=$folder/munge.socket,cred_expire=5

SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log

# Without plugins that need cgroups, systemd or a database.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none

SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Look for jobs to start every two seconds instead of every minute.
SchedulerParameters=sched_interval=2,bf_interval=2
# Pretended GPUs, so that scripts that ask for GPUs can be tried.
GresTypes=gpu
NodeName=$name NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
ReturnToService=2
JobRequeue=1
KillWait=30
CONF
    touch "$folder/gpu0" "$folder/gpu1"
    printf 'AutoDetect=off\nNodeName=%s Name=gpu File=%s/gpu[0-1]\n' "$name" "$folder" >"$folder/gres.conf"
}

# Print the process id in a pid file if that process still runs the daemon: the system reuses ids.
running() {
    local pid
    pid=$(cat "$folder/$1.pid" 2>/dev/null) || return 1
    case $(readlink "/proc/$pid/exe" 2>/dev/null) in
        */"$1" | */"$1"-wlm) echo "$pid" ;;
        *) return 1 ;;
    esac
}

node_is_idle() { [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; }

wait_until() {
    local attempt
    for ((attempt = 0; attempt < seconds_to_wait * 5; attempt++)); do
        if "$@"; then return; fi
        sleep 0.2
    done
    return 1
}

start() {
    if running slurmctld >/dev/null && running slurmd >/dev/null && running munged >/dev/null; then
        say "the cluster is running already"
        return
    fi
    install_missing
    stop
    mkdir -p "$folder/state" "$folder/spool"
    write_config
    mungekey --create --keyfile="$folder/munge.key"
    # A munged with its own key, so that one already on the machine is not disturbed.
    munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    slurmctld -c -f "$SLURM_CONF"
    slurmd -c -f "$SLURM_CONF"
    if ! wait_until node_is_idle; then
        tail -n 20 "$folder"/*.log >&2
        give_up "the node was not idle after $seconds_to_wait seconds; the ends of the logs are above"
    fi
}

stop() {
    local name pid
    if running slurmctld >/dev/null; then
        scancel --user=root 2>/dev/null || true
    fi
    for name in slurmd slurmctld munged; do
        if pid=$(running "$name"); then
            kill "$pid"
            wait_until gone "$pid" || give_up "$name (process $pid) did not end"
        fi
    done
    rm -rf "$folder"
}

gone() { ! kill -0 "$1" 2>/dev/null; }

[ "$(id -u)" = 0 ] || give_up "must be run as root, to install Slurm and to start its daemons"
export SLURM_CONF=$folder/slurm.conf
case ${1:-} in
    start)
        start
        printf 'export SLURM_CONF=%s\n' "$SLURM_CONF"
        ;;
    stop) stop ;;
    *) give_up "usage: bash $0 start|stop" ;;
esac
