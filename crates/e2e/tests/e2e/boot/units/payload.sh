#!/bin/sh
# Runs in the VM as root: both units of packaging/systemd, as an administrator would use them, and
# the agent on cgroup v2 with the systemd driver. The first boot ends in a reboot.
# Prints one line for each observation; the case compares them all.
set -u
PAUSE=@PAUSE@

# until_true WHAT COMMAND…: polls for at most five minutes: the machine is emulated, and its host
# may be busy.
until_true() {
    what=$1
    shift
    for _ in $(seq 1500); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    echo "gave up waiting: $what"
    journalctl --no-pager --lines 60 -u podwright-kubelet -u podwright-up
    exit 1
}

# The process of a container, identified by a number that only its command line has.
# The brackets keep grep from finding itself.
process() { grep -lsxz "${1%?}[${1#???}]" /proc/[0-9]*/cmdline; }
is_gone() { [ -z "$(process "$1")" ]; }
is_alone() { [ "$(process "$1" | wc -l)" = 1 ]; }
main_pid() { systemctl show --value --property MainPID "$1"; }
restarts() { systemctl show --value --property NRestarts "$1"; }
# was_restarted UNIT BEFORE: more restarts than before, and it is active.
was_restarted() { [ "$(restarts "$1")" -gt "$2" ] && systemctl is-active --quiet "$1"; }

# manifest NAME COMMAND [LIMITS [POLICY]]: a pod that runs the command.
manifest() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: { name: $1 }
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: ${4:-Always}
  containers:
    - name: app
      image: localhost/podwright/test:latest
      imagePullPolicy: Never
      $2
      resources: { limits: { ${3:-} } }
YAML
}

# The agent's list of its pods; the case reads it.
pods() { busybox wget -q -O - http://127.0.0.1:10255/pods; }
reports() { pods | grep -q "$1"; }
ready() { [ "$(pods | grep -o '"status":"True","type":"Ready"' | wc -l)" = "$1" ]; }
no_slices() { ! find /sys/fs/cgroup/kubepods.slice -name '*-pod*' | grep -q .; }
in_one_line() { cat "$@" | tr '\n' ';'; }

# survives UNIT NUMBER: whatever happens to the agent, the container is the same process.
survives() {
    before=$(process "$2")
    systemctl stop "$1"
    [ "$(process "$2")" = "$before" ] && echo "$1 stopped: its container keeps running"
    systemctl start "$1"
    systemctl restart "$1"
    [ "$(process "$2")" = "$before" ] && echo "$1 started and restarted: the same process"
    before_kill=$(restarts "$1")
    kill -KILL "$(main_pid "$1")"
    until_true "$1 after it was killed" was_restarted "$1" "$before_kill"
    [ "$(process "$2")" = "$before" ] && echo "$1 killed: restarted, the same process"
    before_kill=$(restarts "$1")
    kill -STOP "$(main_pid "$1")"
    until_true "the watchdog of $1" was_restarted "$1" "$before_kill"
    [ "$(process "$2")" = "$before" ] && echo "$1 hung: restarted, the same process"
}

first_boot() {
install -m 755 podwright /usr/local/bin/podwright
cp units/*.service /etc/systemd/system/
for unit in podwright-kubelet podwright-up; do
    mkdir -p "/etc/systemd/system/$unit.service.d"
    printf '[Service]\nWatchdogSec=15s\n' >"/etc/systemd/system/$unit.service.d/soon.conf"
done
# A container that ignores SIGTERM would delay the reboot by a minute and a half.
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\nDefaultTimeoutStopSec=10s\n' >/etc/systemd/system.conf.d/soon.conf
systemctl daemon-reload

mkdir -p /etc/kubernetes/manifests /etc/containerd /etc/cni/net.d
cat >/etc/containerd/config.toml <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$PAUSE"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
TOML
cat >/etc/cni/net.d/10-pods.conflist <<'JSON'
{ "cniVersion": "1.0.0", "name": "pods", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/24" }]] } } ] }
JSON
cat >/etc/kubernetes/kubelet.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
readOnlyPort: 10255
YAML
systemctl start containerd
for image in pause test; do ctr -n k8s.io images import "images/$image.tar" >/dev/null; done

manifest one 'command: ["sleep", "4321"]' >/etc/kubernetes/manifests/one.yaml
manifest limited 'command: ["sleep", "5432"]' 'cpu: 1, memory: 64Mi' >/etc/kubernetes/manifests/limited.yaml
manifest greedy 'args: ["alloc", "256"]' 'memory: 32Mi' Never >/etc/kubernetes/manifests/greedy.yaml
systemctl start podwright-kubelet
echo "podwright-kubelet is $(systemctl is-active podwright-kubelet)"
until_true "the static pod" is_alone 4321
echo "its container is below $(sed 's/^0:://; s/-pod.*//' "$(dirname "$(process 4321)")/cgroup")"
until_true "the pod with limits" is_alone 5432
scope=/sys/fs/cgroup$(sed 's/^0:://' "$(dirname "$(process 5432)")/cgroup")
pod=$(dirname "$scope")
echo "its pod has $(in_one_line "$pod/cpu.weight" "$pod/cpu.max" "$pod/memory.max")"
echo "its container has $(in_one_line "$scope/cpu.weight" "$scope/cpu.max" "$scope/memory.max")"
until_true "the container over its limit" reports OOMKilled
until_true "two pods that are ready" ready 2
echo "pods: $(pods)"
survives podwright-kubelet 4321
until_true "two pods that are ready again" ready 2
echo "pods: $(pods)"
systemctl --quiet enable containerd podwright-kubelet
touch /var/lib/first-boot
sync
exit 75
}

if [ ! -e /var/lib/first-boot ]; then first_boot; fi

# After the reboot nothing is started manually.
until_true "the static pod after the reboot" is_alone 4321
until_true "the pod with limits after the reboot" is_alone 5432
until_true "two pods that are ready after the reboot" ready 2
echo "pods: $(pods)"
rm /etc/kubernetes/manifests/*.yaml
until_true "the end of the static pods" is_gone 4321
until_true "the removal of their cgroups" no_slices
echo "no cgroup is left"
systemctl stop podwright-kubelet

systemctl start podwright-up
until_true "podwright-up" systemctl is-active --quiet podwright-up
echo "podwright-up is $(systemctl is-active podwright-up)"
podwright images load images/test.tar >/dev/null || echo "the image was not loaded"
manifest two 'command: ["sleep", "8765"]' >/var/lib/podwright/manifests/two.yaml
until_true "the pod of the standalone node" is_alone 8765
survives podwright-up 8765
systemctl stop podwright-up
podwright down >/dev/null || echo "down failed"
is_gone 8765 && echo "down: nothing runs"
exit 0
