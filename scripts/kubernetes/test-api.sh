# What the API server makes of the manifests and of the chart. Read by cluster.sh.
# shellcheck shell=bash
repo=$(cd "$here/../.." && pwd)
manifests=$repo/packaging/kubernetes
fail() { say "FAILED: $*" >&2; exit 1; }

# What the server keeps is what was given.
unchanged() {
    local differs
    differs=$(kubectl diff -k "$manifests/$1" 2>&1) || fail "$1: the server keeps something else: $differs"
}

kubectl create namespace monitoring >/dev/null
within 120 "the definitions are taken" kubectl apply --server-side -f "$cache/programs/operator.yaml"
within 60 "the definitions of PodMonitor and PrometheusRule" kubectl get podmonitors,prometheusrules -A
# Strict: a field that the server does not know is an error.
for folder in base monitoring; do
    kubectl apply -k "$manifests/$folder" --validate=strict >"$room/log/apply-$folder.log" || fail "$folder is not taken"
    say "$folder: taken"
    sed 's/^/    /' "$room/log/apply-$folder.log"
    unchanged "$folder"
done
kubectl apply -k "$manifests/rbac-proxy" --validate=strict >"$room/log/apply-rbac-proxy.log" || fail "rbac-proxy is not taken"
say "rbac-proxy: taken"
sed 's/^/    /' "$room/log/apply-rbac-proxy.log"
unchanged rbac-proxy
may() { kubectl auth can-i "${@:2}" --as="system:serviceaccount:entrain:$1" -n entrain -q 2>/dev/null; }
may entrain-host create tokenreviews && may entrain-host create subjectaccessreviews.authorization.k8s.io ||
    fail "the proxy may not ask who comes"
may entrain-scrape get /metrics || fail "Prometheus' account may not read metrics"
if may entrain-host list secrets || may entrain-scrape list secrets || may default get /metrics; then fail "somebody may too much"; fi
kubectl delete -k "$manifests/rbac-proxy" --ignore-not-found --wait >/dev/null
kubectl apply -k "$manifests/monitoring" >/dev/null

say "namespace without privileges: a pod of the DaemonSet is refused there"
kubectl create namespace strict >/dev/null
kubectl label namespace strict pod-security.kubernetes.io/enforce=restricted >/dev/null
refused=$(kubectl get daemonset entrain-host -n entrain -o json |
    sed 's/"namespace": "entrain"/"namespace": "strict"/' | kubectl apply --dry-run=server -f - 2>&1 || true)
[[ $refused == *"would violate PodSecurity"* ]] || fail "the standard 'restricted' lets it in: $refused"
echo "    $(head -c 200 <<<"$refused" | head -1)"

account=system:serviceaccount:entrain:entrain-host
say "what the service account may do"
kubectl auth can-i --list --as="$account" --as-group=system:serviceaccounts --as-group=system:authenticated >"$room/log/rights.log"
# Nothing but asking what it may do, and the server's health and description of itself: what any account may.
if grep -vE '^(Resources|selfsubject| +\[/)' "$room/log/rights.log" | grep -q .; then
    fail "it has rights: $(cat "$room/log/rights.log")"
fi
for asked in "get pods" "list secrets" "create pods" "get nodes"; do
    # shellcheck disable=SC2086
    if kubectl auth can-i $asked --as="$account" -n entrain -q; then fail "it may $asked"; fi
done
echo "    nothing of a cluster's: get pods, list secrets, create pods, get nodes are refused"

say "the chart"
helm lint --quiet "$manifests/helm/entrain"
kubectl create namespace chart >/dev/null
kubectl label namespace chart pod-security.kubernetes.io/enforce=privileged >/dev/null
helm install entrain "$manifests/helm/entrain" -n chart --set podMonitor.enabled=true --set-string 'nodeSelector.entrain/host=chart' \
    >"$room/log/helm.log" || fail "the chart is not taken"
kubectl get daemonset,networkpolicy,podmonitor,configmap,serviceaccount -n chart -o name | sed 's/^/    /'
helm upgrade entrain "$manifests/helm/entrain" -n chart --reuse-values --set mode=schedule --set-string 'hostToml=default = "batch"' >/dev/null
kubectl get daemonset entrain-host -n chart -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -q '"--mode","schedule"' ||
    fail "the chart's mode is not the daemon's"
kubectl get configmap entrain-host -n chart -o jsonpath='{.data}' | grep -q 'default = ' || fail "the chart's classes are not there"
helm uninstall entrain -n chart >/dev/null
[[ -z $(kubectl get daemonset,networkpolicy,podmonitor -n chart -o name) ]] || fail "the chart leaves something"
echo "    installed, upgraded, uninstalled: nothing is left"
