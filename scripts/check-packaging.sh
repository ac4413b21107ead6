#!/usr/bin/env bash
# Checks what other programs read: Prometheus' rules and their tests, the expressions of Grafana's dashboard, the units.
# promtool comes from Debian's package, unpacked in a temporary folder. --renew writes the rules as the Prometheus operator
# reads them, instead of checking that they are those.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-check-XXXXXX")
trap 'rm -rf "$room"' EXIT
promtool=$(command -v promtool || true)
if [[ -z $promtool ]]; then
    # _apt may not write to the folder; the download works all the same.
    (cd "$room" && apt-get -qq download prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb root)
    promtool=$room/root/usr/bin/promtool
fi
rules=$repo/packaging/kubernetes/monitoring/rules.yaml
{
    echo "# Made of packaging/prometheus/entrain.rules.yml: scripts/check-packaging.sh --renew"
    printf 'apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: entrain-host, namespace: entrain}\nspec:\n'
    sed 's/^\(.\)/  \1/' "$repo/packaging/prometheus/entrain.rules.yml"
} >"$room/rules.yaml"
if [[ ${1:-} == --renew ]]; then cp "$room/rules.yaml" "$rules"; fi
cmp "$room/rules.yaml" "$rules" || { echo "check-packaging: $rules is not made of the rules: --renew" >&2; exit 1; }
"$promtool" check rules "$repo/packaging/prometheus/entrain.rules.yml"
(cd "$repo/packaging/prometheus" && "$promtool" test rules entrain.test.yml)

# Each expression of the dashboard as a rule, with Grafana's variables filled in. A JSON string is a YAML string.
{
    echo 'groups: [{name: dashboard, rules: ['
    sed -n 's/^ *"expr": \(".*"\),\?$/\1/p' "$repo/packaging/grafana/entrain.json" |
        sed 's/\$__rate_interval/5m/g; s/\$instance/.*/g; s/\$vm/.*/g' |
        awk '{ printf "{record: \"panel:%d\", expr: %s},\n", NR, $0 }'
    echo ']}]'
} >"$room/dashboard.yml"
"$promtool" check rules "$room/dashboard.yml"

# How much a unit leaves open by systemd's own measure, 0 (nothing) to 10, in tenths. What is left of the host's: the
# capabilities that it starts with, the network for --metrics, other users' processes. Lower is better; raise neither.
if command -v systemd-analyze >/dev/null; then
    for bound in entrain-host:30 entrain-guest:43; do
        unit=$repo/packaging/systemd/${bound%:*}.service
        systemd-analyze security --no-pager --offline=yes --threshold="${bound#*:}" "$unit" | tail -1
    done
fi

# Debian has no helm; where somebody has it, the chart is rendered as it comes, and with all that can be switched on.
if command -v helm >/dev/null; then
    chart=$repo/packaging/kubernetes/helm/entrain
    helm lint --quiet "$chart"
    render() { helm template entrain "$chart" --namespace entrain --kube-version 1.33.0 "$@"; }
    render >"$room/chart.yaml"
    grep -q '^kind: NetworkPolicy' "$room/chart.yaml"
    render --set podMonitor.enabled=true,networkPolicy.enabled=false,mode=schedule >"$room/chart.yaml"
    grep -q '^kind: PodMonitor' "$room/chart.yaml" && grep -q -- '--mode, schedule' "$room/chart.yaml" &&
        ! grep -q '^kind: NetworkPolicy' "$room/chart.yaml" ||
        { echo "check-packaging: the chart does not follow its values" >&2; exit 1; }
fi
