//! Entitlement down a tree of cgroups, as the kernel shares: at each level the groups and VMs that stand side by side share
//! what their parent gets, by their weights (`entitle.h`).
//!
//! A weight counts among its siblings and nowhere else: a tenant who may set the weights in a group that is delegated to
//! him divides what that group gets, and takes nothing from its neighbours.

use std::collections::BTreeMap;

use crate::entitle::{Entitlement, Level, Vm};

/// A group above a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Above {
    /// Tells it from its siblings, and is the same for all VMs below it.
    pub id: u64,
    /// cgroup v2 weight, 1..=10000.
    pub weight: u64,
}

/// One VM and the groups above it, the root's child first.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    /// By weight among its siblings.
    pub vm: Vm,
    /// From the top.
    pub above: &'a [Above],
}

/// A group, or a VM.
#[derive(Debug, Default)]
struct Node {
    parent: usize,
    /// Its number among its parent's children.
    place: usize,
    vm: Vm,
    children: Vec<usize>,
    level: Level,
    /// What it gets for what is wanted below it now.
    share: u64,
}

const ROOT: usize = 0;

/// What each VM gets, and may grow to, of `capacity` (1/1024 pCPU); the answers are in the order of `leaves`.
///
/// O(n log n) for n groups and VMs, times the depth.
pub fn entitle_tree(leaves: &[Leaf<'_>], capacity: u64) -> Vec<Entitlement> {
    let mut nodes = vec![Node::default()];
    let mut known = BTreeMap::new();
    let own: Vec<usize> = leaves
        .iter()
        .map(|leaf| {
            let parent = leaf.above.iter().fold(ROOT, |parent, group| {
                *known.entry((parent, group.id)).or_insert_with(|| add(&mut nodes, parent, Vm::new(group.weight, 0, 0)))
            });
            add(&mut nodes, parent, leaf.vm)
        })
        .collect();
    // Children stand behind their parents.
    for index in (1..nodes.len()).rev() {
        let (parent, vm) = (nodes[index].parent, nodes[index].vm);
        let sum = &mut nodes[parent].vm;
        *sum = Vm::new(sum.weight, sum.demand + vm.demand, sum.ceiling + vm.ceiling);
    }
    for index in 0..nodes.len() {
        let children: Vec<Vm> = nodes[index].children.iter().map(|child| nodes[*child].vm).collect();
        nodes[index].level = Level::new(&children);
    }
    nodes[ROOT].share = capacity;
    for index in 1..nodes.len() {
        let parent = &nodes[nodes[index].parent];
        nodes[index].share = parent.level.present_share(nodes[index].place, parent.share);
    }
    own.into_iter()
        .map(|leaf| Entitlement { share: nodes[leaf].share, entitlement: grown(&nodes, leaf, capacity) })
        .collect()
}

fn add(nodes: &mut Vec<Node>, parent: usize, vm: Vm) -> usize {
    let index = nodes.len();
    let place = nodes[parent].children.len();
    nodes[parent].children.push(index);
    nodes.push(Node { parent, place, vm, ..Node::default() });
    index
}

/// What a VM gets if it wants all it can use while the others want what they want: so much more is wanted by each group
/// above it.
fn grown(nodes: &[Node], leaf: usize, capacity: u64) -> u64 {
    let more = nodes[leaf].vm.ceiling - nodes[leaf].vm.demand;
    let mut path = vec![leaf];
    while let Some(parent) = path.last().map(|node| nodes[*node].parent).filter(|parent| *parent != ROOT) {
        path.push(parent);
    }
    path.iter().rev().fold(capacity, |capacity, node| {
        let node = &nodes[*node];
        nodes[node.parent].level.share(node.place, node.vm.demand + more, capacity)
    })
}
