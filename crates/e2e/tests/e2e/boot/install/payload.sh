#!/bin/sh
# Runs in the VM as root: `podwright install` on a machine with systemd, over a node that was started
# by hand, an upgrade, a reboot and `podwright uninstall`. Prints one line for each observation; the
# case compares them all.
set -u

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
    journalctl --no-pager --lines 60 -u podwright-up
    exit 1
}

# The process of the container, identified by a number that only its command line has.
# The brackets keep grep from finding itself.
process() { grep -lsxz '[8]765' /proc/[0-9]*/cmdline; }
is_alone() { [ "$(process | wc -l)" = 1 ]; }
main_pid() { systemctl show --value --property MainPID podwright-up; }
same() { [ "$(process)" = "$before" ]; }

first_boot() {
./podwright up >/dev/null || echo "up failed"
./podwright images load images/test.tar >/dev/null || echo "the image was not loaded"
cat >/var/lib/podwright/manifests/two.yaml <<'YAML'
apiVersion: v1
kind: Pod
metadata: { name: two }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - { name: app, image: localhost/podwright/test:latest, imagePullPolicy: Never, command: ["sleep", "8765"] }
YAML
until_true "the pod" is_alone
before=$(process)
./podwright install >/root/installed || echo "install failed: $(cat /root/installed)"
until_true "the unit" systemctl is-active --quiet podwright-up
echo "installed: $(systemctl is-enabled podwright-up), $(systemctl is-active podwright-up)"
same && echo "installed: the same process"
podwright install | grep -q 'already installed' && echo "again: nothing changes"
first=$(main_pid)
./newer install >/dev/null || echo "upgrade failed"
until_true "the unit after the upgrade" systemctl is-active --quiet podwright-up
[ "$(main_pid)" != "$first" ] && cmp -s ./newer /usr/local/bin/podwright && echo "upgraded: the new agent"
same && echo "upgraded: the same process"
touch /var/lib/first-boot
sync
exit 75
}

if [ ! -e /var/lib/first-boot ]; then first_boot; fi

until_true "the pod after the reboot" is_alone
echo "booted: $(systemctl is-active podwright-up)"
before=$(process)
podwright uninstall >/root/removed || echo "uninstall failed: $(cat /root/removed)"
same && echo "uninstalled: the same process"
find /usr/local /etc/systemd -name '*podwright*' | sed 's/^/left: /'
systemctl is-enabled podwright-up 2>/dev/null | sed 's/^/left: /'
./podwright down >/dev/null || echo "down failed"
[ -z "$(process)" ] && echo "down: nothing runs"
exit 0
