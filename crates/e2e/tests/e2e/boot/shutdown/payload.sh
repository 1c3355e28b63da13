#!/bin/sh
# Runs in the VM as root: a joined agent's unit with shutdownGracePeriod, pods that need five seconds
# to stop, and one that ignores SIGTERM. The first boot ends in `systemctl reboot`.
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
    journalctl --no-pager --lines 60 -u podwright-kubelet -u containerd -u systemd-logind
    exit 1
}

# The brackets keep grep from finding itself.
process() { grep -lsxz "${1%?}[${1#???}]" /proc/[0-9]*/cmdline; }
runs() { [ -n "$(process "$1")" ]; }
is_delayed() { systemd-inhibit --list --no-legend | grep -q kubelet; }

# writer NAME PRIORITY: a pod that writes for five more seconds after SIGTERM.
writer() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: { name: $1 }
spec:
  terminationGracePeriodSeconds: 30
  hostNetwork: true
  priority: $2
  containers:
    - name: app
      image: localhost/podwright/test:latest
      imagePullPolicy: Never
      command:
        - sh
        - -c
        - |
          now() { cut -d. -f1 /proc/uptime; }
          last() {
            for i in 1 2 3 4 5; do echo "last \$i at \$(now)" >>/data/$1; sleep 1; done
            echo "complete at \$(now)" >>/data/$1
            exit 0
          }
          trap last TERM
          echo started >>/data/$1
          while :; do sleep 0.2; done
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes:
    - name: data
      hostPath: { path: /var/lib/written, type: DirectoryOrCreate }
YAML
}

stubborn() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: { name: stubborn }
spec:
  terminationGracePeriodSeconds: 8
  hostNetwork: true
  containers:
    - name: app
      image: localhost/podwright/test:latest
      imagePullPolicy: Never
      command: [sleep, "4321"]
YAML
}

# at WORD FILE: the time of the line that begins with the word.
at() { sed -n "s/^$1 at //p" "/var/lib/written/$2"; }

first_boot() {
install -m 755 podwright /usr/local/bin/podwright
cp units/*.service /etc/systemd/system/
systemctl daemon-reload
mkdir -p /etc/kubernetes/manifests /etc/containerd /etc/cni/net.d
cat >/etc/containerd/config.toml <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$PAUSE"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
TOML
cat >/etc/kubernetes/kubelet.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
shutdownGracePeriod: 40s
shutdownGracePeriodCriticalPods: 15s
YAML
systemctl start containerd
for image in pause test; do ctr -n k8s.io images import "images/$image.tar" >/dev/null; done
writer normal 0 >/etc/kubernetes/manifests/normal.yaml
writer critical 2000000000 >/etc/kubernetes/manifests/critical.yaml
stubborn >/etc/kubernetes/manifests/stubborn.yaml
systemctl start podwright-kubelet
until_true "the lock" is_delayed
echo "shutdowns are delayed for $(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec)"
until_true "the normal writer" grep -q started /var/lib/written/normal
until_true "the critical writer" grep -q started /var/lib/written/critical
until_true "the stubborn pod" runs 4321
systemctl --quiet enable containerd podwright-kubelet
date +%s >/var/lib/first-boot
sync
exit 75
}

if [ ! -e /var/lib/first-boot ]; then first_boot; fi

booted=$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))
took=$((booted - $(cat /var/lib/first-boot)))
echo "took $took s from the request to the next kernel" >&2
# Without the agent systemd would wait 90 s for the pod that ignores SIGTERM.
[ "$took" -lt 75 ] && echo "the reboot was not held up" || echo "the reboot took $took s"
for pod in normal critical; do
    echo "$pod wrote $(grep -c '^last' /var/lib/written/$pod) last lines, $(grep -c '^complete' /var/lib/written/$pod) complete"
done
[ "$(at 'last 1' critical)" -ge "$(at complete normal)" ] && echo "the critical pod ended after the normal one"
grep -q '"endTime":"2' /var/lib/kubelet/graceful_node_shutdown_state && echo "the shutdown is recorded"
exit 0
