# What the tests of the packages ask of a root, whatever installs there; sourced in it by test.sh. TEST is the test's name.
# shellcheck shell=sh
say() { echo "$TEST: $*"; }
fail() { echo "$TEST: FAILED: $*" >&2; exit 1; }
# everything DATABASE: all files but those of the packages' database
everything() {
    find / -xdev \( -path /proc -o -path /sys -o -path "$1" -o -path /var/log -o -path /tmp \) -prune -o -print | sort
}
programs_run() {
    entrain --version
    entrain-guest --version
    entrain host --check-config --config /etc/entrain/host.toml
    # 0 and 1 are answers; 2 would mean that it could not look.
    entrain doctor --role host >/tmp/doctor || [ $? = 1 ] || fail "doctor"
    head -1 /tmp/doctor
    [ -x /usr/share/entrain/libvirt/entrain-hook ] || fail "libvirt would not run the hook"
    [ ! -e /etc/systemd/system/multi-user.target.wants/entrain-host.service ] || fail "the unit was enabled unasked"
}
operator_configures() { echo 'default = "batch"' >>/etc/entrain/host.toml; }
operators_configuration_is_kept() {
    grep -q '^default = "batch"' /etc/entrain/host.toml || fail "the upgrade lost the operator's configuration"
    entrain host --check-config --config /etc/entrain/host.toml | grep -q "default 'batch'" || fail "configuration"
}
# nothing_is_left DATABASE: as /tmp/before, which everything has written
nothing_is_left() {
    everything "$1" >/tmp/after
    diff /tmp/before /tmp/after || fail "these are left"
}
