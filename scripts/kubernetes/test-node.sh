# What the DaemonSet does on a node with VMs laid out as KubeVirt's. Read by cluster.sh.
# shellcheck shell=bash
say "the node: $(kubectl get node node1 -o jsonpath='{.status.nodeInfo.kubeletVersion}, {.status.nodeInfo.containerRuntimeVersion}, {.status.nodeInfo.kernelVersion}, {.status.nodeInfo.osImage}')"
kubectl create namespace shop >/dev/null
kubectl label namespace shop pod-security.kubernetes.io/enforce=privileged >/dev/null
within 60 "the account of the namespace" kubectl -n shop get serviceaccount default
kubectl apply -f "$here/inspector.yaml" >/dev/null
for vm in db web; do sed "s/@VM@/$vm/g" "$here/vm.yaml" | kubectl apply -f - >/dev/null; done
within 900 "the pods run" kubectl -n shop wait --for=condition=Ready pod --all --timeout=1s
inspect() { kubectl -n shop exec inspector -- busybox "$@"; }
# The cgroup of a VM's pod, from the root.
pod_of() {
    local uid
    uid=$(kubectl -n shop get pod "virt-launcher-$1-x7k2p" -o jsonpath='{.metadata.uid}')
    echo "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${uid//-/_}.slice"
}
weight() { inspect cat "/host/fs/cgroup$(pod_of "$1")/cpu.weight"; }
# A cgroup of a container's is made before it is given its weight.
within 60 "cgroups of the pods" weight db
before_db=$(weight db) before_web=$(weight web)
say "before: weights of the pods db $before_db, web $before_web; limit of db's: $(inspect cat "/host/fs/cgroup$(pod_of db)/cpu.max")"

# An emulated machine takes its time to load.
slow() {
    kubectl -n entrain patch daemonset entrain-host --type=json -p '[
        {"op": "replace", "path": "/spec/template/spec/containers/0/startupProbe/failureThreshold", "value": 600},
        {"op": "replace", "path": "/spec/template/spec/containers/0/readinessProbe/timeoutSeconds", "value": 20},
        {"op": "replace", "path": "/spec/template/spec/containers/0/livenessProbe/timeoutSeconds", "value": 20}]' >/dev/null
}

# configure FILE: of the room, becomes the daemon's when it is started anew.
configure() {
    kubectl -n entrain create configmap entrain-host --from-file=host.toml="$room/$1" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
}
daemons_pod() { kubectl -n entrain get pod -l app.kubernetes.io/name=entrain-host -o jsonpath='{.items[0].metadata.name}'; }
# top_shows PATTERN: what it has shown last is in the log folder.
top_shows() { kubectl -n entrain exec "$pod" -- entrain top --once --vms >"$room/log/top.txt" && grep -q "$1" "$room/log/top.txt"; }
scheduler() { inspect cat /host/kernel/sched_ext/state; }

# Classes by cgroup: the first rule is db's alone, by its name in KubeVirt.
cat >"$room/host.toml" <<'CLASSES'
[[vm]]
class = "critical"
name = "shop_db"
cgroup = "/kubepods.slice/**"

[[vm]]
class = "batch"
cgroup = "/kubepods.slice/kubepods-burstable.slice/**"
CLASSES
configure host.toml
slow
[[ $(kubectl -n entrain get daemonset entrain-host -o jsonpath='{.status.desiredNumberScheduled}') == 0 ]] ||
    fail "it runs on a node that nobody has labelled"
kubectl label node node1 entrain/host=true >/dev/null
within 900 "the DaemonSet is ready" kubectl -n entrain rollout status daemonset/entrain-host --timeout=1s
pod=$(daemons_pod)
say "running: $(kubectl -n entrain get pod "$pod" --no-headers)"
kubectl -n entrain logs "$pod" >"$room/log/daemon.log"
grep -q "entered the host's cgroup namespace" "$room/log/daemon.log" || fail "the daemon shares the node's cgroup namespace, or has not entered it"

metrics() { kubectl get --raw "/api/v1/namespaces/entrain/pods/$pod:9780/proxy/metrics" >"$room/log/metrics.txt"; }
within 60 "/healthz by way of the API server" kubectl get --raw "/api/v1/namespaces/entrain/pods/$pod:9780/proxy/healthz"
found() { metrics && [[ $(grep -c '^entrain_vm_info{.*manager="kubevirt",managed_as="shop/' "$room/log/metrics.txt") == 2 ]]; }
within 300 "both VMs in the metrics" found
say "VMs, by the metrics"
grep '^entrain_vm_info' "$room/log/metrics.txt" | sed 's/^/    /'
grep -q '^entrain_vm_info{.*managed_as="shop/db",class="critical"' "$room/log/metrics.txt" || fail "db has not its class by cgroup"
grep -q '^entrain_vm_info{.*managed_as="shop/web",class="batch"' "$room/log/metrics.txt" || fail "web has not its class by cgroup"
set_weights() { [[ $(weight db) == 400 && $(weight web) == 25 ]]; }
within 60 "weights by class" set_weights || fail "weights of the pods: db $(weight db), web $(weight web), not 400 and 25"
say "weights of the pods by class: db $(weight db), web $(weight web)"

say "entrain top, in the pod"
within 300 "both guests are paired" top_shows ' 4 vCPUs (4 paired)'
sed 's/^/    /' "$room/log/top.txt"

say "mode schedule, in the pod"
(printf '[host]\nmode = "schedule"\n\n'; cat "$room/host.toml") >"$room/schedule.toml"
configure schedule.toml
kubectl -n entrain rollout restart daemonset/entrain-host >/dev/null
within 900 "the DaemonSet is ready again" kubectl -n entrain rollout status daemonset/entrain-host --timeout=1s
pod=$(daemons_pod)
kubectl -n entrain logs "$pod" >"$room/log/scheduling.log"
within 300 "the scheduler runs and both guests are paired again" top_shows '^entrain schedule: .* 4 vCPUs (4 paired)' ||
    fail "not scheduled: $(head -1 "$room/log/top.txt")"
[[ $(scheduler) == enabled ]] || fail "the kernel knows of no scheduler"
sed 's/^/    /' "$room/log/top.txt"

say "the label taken away"
kubectl label node node1 entrain/host- >/dev/null
gone() { [[ -z $(kubectl -n entrain get pod -o name) && $(weight db) == "$before_db" && $(weight web) == "$before_web" && $(scheduler) == disabled ]]; }
within 300 "the pod ends, its scheduler with it, and weights are back" gone || fail "weights afterwards: db $(weight db), web $(weight web), not $before_db, $before_web"
echo "    no pod is left; weights are db $(weight db), web $(weight web)"
kubectl -n shop delete pod --all --timeout=120s >/dev/null || true
