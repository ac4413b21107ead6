//! One page of the channel: all its bytes are the guest's.

use arbitrary::{Result, Unstructured};
use entrain_channel::page::{Header, LinkLine, MAGIC0, MAGIC1, PAGE_SIZE, Page, PreemptLayout, VERSION, feature};
use entrain_channel::word::{Link, LinkState};

/// Where the page is found, in a guest of 1 GiB below 4 GiB and 1 GiB above.
const AT: u64 = 0x28_3000;
const RAM: [entrain_host::untrusted::RawSlot; 2] =
    [(0, 1 << 30, 0x7f00_0000_0000, 0), (4 << 30, 1 << 30, 0x7f00_4000_0000, 0)];

pub(crate) fn run(data: &[u8]) {
    let _ = one(&mut Unstructured::new(data));
}

/// A link word that was read first, edits of a good page, each an offset and a word.
fn one(data: &mut Unstructured<'_>) -> Result<()> {
    let link: Option<u64> = data.arbitrary()?;
    let mut page = good(AT, 0, 4, &[AT, AT + 0x1000, AT + 0x2000, AT + 0x3000]);
    edit(data, &mut page)?;
    let at = std::mem::offset_of!(Page, link);
    let in_page = u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    entrain_host::untrusted::page(&RAM, AT, link.unwrap_or(in_page), &page);
    Ok(())
}

/// Overwrites words of a page: half of the edits in the header and the link, where it matters.
pub(crate) fn edit(data: &mut Unstructured<'_>, page: &mut [u8; PAGE_SIZE]) -> Result<()> {
    for _ in 0..data.int_in_range(0..=24)? {
        let at: u16 = data.arbitrary()?;
        let at = if at & 1 == 0 { usize::from(at) % 0xc0 } else { usize::from(at) % (PAGE_SIZE - 8) };
        let word: u64 = if data.arbitrary()? { data.arbitrary()? } else { u64::from(data.arbitrary::<u8>()?) };
        let length = if data.arbitrary()? { 8 } else { 4 };
        page[at / 4 * 4..][..length].copy_from_slice(&word.to_le_bytes()[..length]);
    }
    Ok(())
}

/// The page of vCPU `vcpu` as an honest guest on offer has it.
pub(crate) fn good(gpa: u64, vcpu: u32, nr_vcpus: u32, directory: &[u64]) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    macro_rules! header {
        ($($field:ident = $value:expr),+ $(,)?) => {
            $(put(std::mem::offset_of!(Header, $field), &$value.to_le_bytes());)+
        };
    }
    put(0, &MAGIC0.to_le_bytes());
    put(8, &MAGIC1.to_le_bytes());
    header! {
        version = VERSION,
        nr_vcpus = nr_vcpus,
        vcpu = vcpu,
        vcpu_hwid = vcpu,
        cookie = 77u64,
        gpa = gpa,
        features = feature::PREEMPT_COUNT | feature::RQ_LOAD | feature::GUEST_WORDS,
        boot_id = 5u64,
        preempt_layout = PreemptLayout::PerCpu32 as u32,
        preempt_gpa = gpa + 0x240,
        util_gpa = gpa + 0x248,
        nr_running_gpa = gpa + 0x250,
    }
    let link = std::mem::offset_of!(Page, link);
    let offered = Link { generation: 3, state: LinkState::Offered }.raw();
    put(link + std::mem::offset_of!(LinkLine, link), &offered.to_le_bytes());
    put(link + std::mem::offset_of!(LinkLine, seed), &0xabcd_u64.to_le_bytes());
    for (number, gpa) in directory.iter().enumerate() {
        put(std::mem::offset_of!(Page, directory) + number * 8, &gpa.to_le_bytes());
    }
    page
}

/// Whether the good page is accepted: otherwise the target would only test refusals.
pub fn seed() -> bool {
    let link = Link { generation: 3, state: LinkState::Offered }.raw();
    entrain_host::untrusted::page(&RAM, AT, link, &good(AT, 0, 4, &[AT, AT + 0x1000, AT + 0x2000, AT + 0x3000]))
}
