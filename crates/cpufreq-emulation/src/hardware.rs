//! The registers and the device tree that make a stock kernel believe in CPUs whose frequency can be scaled.
//!
//! The driver is `drivers/cpufreq/qcom-cpufreq-hw.c`, which Debian builds as a module: its hardware is a page of memory for
//! each cluster, with the operating points as a table to be read and one word that takes the index of the point wanted.
//! Plain memory that the kernel does not use serves as such. No register of it is emulated: the driver finds what the lab
//! put there before the machine started.

use fdt::Fdt;
use fdt::node::FdtNode;
use vm_fdt::FdtWriter;

use crate::tables::{CRYSTAL_MHZ, Cluster, Table};

/// Offsets and forms of the registers, from the driver.
mod register {
    /// Bit 0: the hardware is enabled.
    pub(super) const ENABLE: usize = 0x0;
    /// First word of the frequency table; bits 31:30 say "a multiple of the crystal's", bits 7:0 how often.
    pub(super) const FREQUENCIES: usize = 0x110;
    /// First word of the voltage table; bits 11:0 in mV.
    pub(super) const VOLTAGES: usize = 0x114;
    /// Bytes from one row of a table to the next.
    pub(super) const ROW: usize = 32;
    /// Index of the point asked for.
    pub(super) const POINT: usize = 0x920;
    /// "A multiple of the crystal's".
    pub(super) const OF_CRYSTAL: u32 = 1 << 30;
}

/// Bytes of a cluster's registers.
const PAGE: usize = 0x1000;
/// The machine's last memory, which the kernel is told to leave alone, in bytes: 2 MiB keep its mappings large.
const RESERVED: u64 = 2 << 20;
/// Where the memory of QEMU's `virt` begins.
const MEMORY: u64 = 0x4000_0000;
/// Of the phandles that we hand out; QEMU's begin at 0x8000.
const PHANDLE_CRYSTAL: u32 = 0x7001;
const PHANDLE_REGISTERS: u32 = 0x7002;

/// A device tree that is none.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// QEMU's device tree can't be read.
    #[error("QEMU's device tree can't be read: {0}")]
    Read(fdt::FdtError),
    /// The extended tree can't be written.
    #[error("the device tree can't be written: {0}")]
    Write(#[from] vm_fdt::Error),
}

/// The emulated hardware of one machine.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Its clusters, each with registers of its own.
    clusters: Vec<&'static Cluster>,
    /// The cluster of each CPU, as an index.
    cpus: Vec<usize>,
    /// Guest-physical address of the registers.
    pub address: u64,
}

impl Hardware {
    /// For a `virt` machine of that much memory whose CPUs are of these clusters of `table`.
    pub fn new(table: &'static Table, cores: &[&'static Cluster], memory_mib: u32) -> Self {
        let clusters: Vec<_> = table.clusters.iter().filter(|c| cores.iter().any(|core| core.name == c.name)).collect();
        let place = |core: &&Cluster| clusters.iter().position(|c| c.name == core.name).unwrap_or_default();
        let cpus = cores.iter().map(place).collect();
        Self { cpus, clusters, address: MEMORY + (u64::from(memory_mib) << 20) - RESERVED }
    }

    /// What the registers hold when the machine starts; to be put at [`Self::address`]. CPUs begin at their fastest.
    pub fn registers(&self) -> Vec<u8> {
        self.clusters.iter().flat_map(|cluster| page(cluster)).collect()
    }

    /// QEMU's device tree of the machine, extended by the clusters.
    pub fn device_tree(&self, qemus: &[u8]) -> Result<Vec<u8>, HardwareError> {
        let tree = Fdt::new(qemus).map_err(HardwareError::Read)?;
        let root = tree.find_node("/").ok_or(HardwareError::Read(fdt::FdtError::BadPtr))?;
        let mut writer = FdtWriter::new()?;
        self.node(&mut writer, root, "")?;
        Ok(writer.finish()?)
    }

    /// Writes a node as it is, and what belongs into it.
    fn node(&self, writer: &mut FdtWriter, node: FdtNode<'_, '_>, parent: &str) -> Result<(), HardwareError> {
        // The root has no name, which the reader shows as a slash.
        let name = if parent.is_empty() { "" } else { node.name };
        let handle = writer.begin_node(name)?;
        for property in node.properties() {
            writer.property(property.name, property.value)?;
        }
        if parent.is_empty() {
            self.root(writer)?;
        }
        if parent == "cpus" && name.starts_with("cpu@") {
            let number = node.property("reg").and_then(|reg| reg.as_usize()).unwrap_or(usize::MAX);
            // Nodes come in any order; `reg` is the CPU's affinity, which is its number on machines this small.
            if let Some(cluster) = self.cpus.get(number) {
                let kind = self.clusters[*cluster];
                writer.property_array_u32("qcom,freq-domain", &[PHANDLE_REGISTERS, *cluster as u32])?;
                writer.property_u32("capacity-dmips-mhz", kind.dmips_per_mhz)?;
                writer.property_u32("dynamic-power-coefficient", kind.coefficient)?;
            }
        }
        for child in node.children() {
            self.node(writer, child, if parent.is_empty() { "/" } else { name })?;
        }
        writer.end_node(handle)?;
        Ok(())
    }

    /// What the root gets: the crystal, the registers, and that the kernel leaves their memory alone.
    fn root(&self, writer: &mut FdtWriter) -> Result<(), HardwareError> {
        let crystal = writer.begin_node("emulated-crystal")?;
        writer.property_string("compatible", "fixed-clock")?;
        writer.property_u32("#clock-cells", 0)?;
        writer.property_u32("clock-frequency", CRYSTAL_MHZ * 1_000_000)?;
        writer.property_u32("phandle", PHANDLE_CRYSTAL)?;
        writer.end_node(crystal)?;

        let registers = writer.begin_node(&format!("cpufreq@{:x}", self.address))?;
        writer.property_string("compatible", "qcom,cpufreq-hw")?;
        let page = |number: usize| [self.address + (number * PAGE) as u64, PAGE as u64];
        writer.property_array_u64("reg", &(0..self.clusters.len()).flat_map(page).collect::<Vec<_>>())?;
        writer.property_array_u32("clocks", &[PHANDLE_CRYSTAL, PHANDLE_CRYSTAL])?;
        writer.property_string_list("clock-names", vec!["xo".into(), "alternate".into()])?;
        writer.property_u32("#freq-domain-cells", 1)?;
        writer.property_u32("#clock-cells", 1)?;
        writer.property_u32("phandle", PHANDLE_REGISTERS)?;
        writer.end_node(registers)?;

        let reserved = writer.begin_node("reserved-memory")?;
        writer.property_u32("#address-cells", 2)?;
        writer.property_u32("#size-cells", 2)?;
        writer.property_null("ranges")?;
        let memory = writer.begin_node(&format!("emulated-registers@{:x}", self.address))?;
        writer.property_array_u64("reg", &[self.address, RESERVED])?;
        writer.property_null("no-map")?;
        writer.end_node(memory)?;
        writer.end_node(reserved)?;
        Ok(())
    }
}

/// A cluster's registers.
fn page(cluster: &Cluster) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let mut put = |at: usize, word: u32| page[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(register::ENABLE, 1);
    // The last point twice: so the driver finds the table's end.
    for (row, point) in cluster.points.iter().chain(cluster.points.last()).enumerate() {
        put(register::FREQUENCIES + row * register::ROW, register::OF_CRYSTAL | point.multiple());
        put(register::VOLTAGES + row * register::ROW, point.mv);
    }
    put(register::POINT, cluster.points.len() as u32 - 1);
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::TABLES;

    /// As QEMU's: a root with cells, memory, and CPUs in descending order.
    fn qemus() -> Vec<u8> {
        let mut w = FdtWriter::new().unwrap();
        let root = w.begin_node("").unwrap();
        w.property_u32("#address-cells", 2).unwrap();
        w.property_u32("#size-cells", 2).unwrap();
        let cpus = w.begin_node("cpus").unwrap();
        w.property_u32("#address-cells", 1).unwrap();
        w.property_u32("#size-cells", 0).unwrap();
        for number in [1, 0] {
            let cpu = w.begin_node(&format!("cpu@{number}")).unwrap();
            w.property_u32("reg", number).unwrap();
            w.end_node(cpu).unwrap();
        }
        w.end_node(cpus).unwrap();
        w.end_node(root).unwrap();
        w.finish().unwrap()
    }

    fn hardware() -> Hardware {
        let table = &TABLES[0];
        let cores = [table.cluster("big").unwrap(), table.cluster("little").unwrap()];
        Hardware::new(table, &cores, 1024)
    }

    #[test]
    fn every_cpu_gets_its_cluster() {
        let blob = hardware().device_tree(&qemus()).unwrap();
        let tree = Fdt::new(&blob).unwrap();
        let capacity = |cpu: usize| {
            tree.find_node(&format!("/cpus/cpu@{cpu}")).unwrap().property("capacity-dmips-mhz").unwrap().as_usize()
        };
        assert_eq!((capacity(0), capacity(1)), (Some(1024), Some(485)));
        assert!(tree.find_node("/cpufreq@7fe00000").is_some(), "the last 2 MiB of 1 GiB at 0x40000000");
        assert!(tree.find_node("/reserved-memory/emulated-registers@7fe00000").is_some());
    }

    #[test]
    fn registers_hold_the_points() {
        let bytes = hardware().registers();
        assert_eq!(bytes.len(), 2 * PAGE);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        // The table's order: little first. 408 MHz at 800 mV.
        assert_eq!((word(0), word(0x110) & 0xff, word(0x114)), (1, 34, 800));
        assert_eq!(word(PAGE + 0x110 + 8 * 32) & 0xff, 168, "2016 MHz, the fastest of the big ones");
        assert_eq!(word(PAGE + 0x110 + 8 * 32), word(PAGE + 0x110 + 9 * 32), "the end of the table");
    }

    #[test]
    fn what_is_no_device_tree_is_an_error() {
        assert!(matches!(hardware().device_tree(b"nothing"), Err(HardwareError::Read(_))));
    }
}
