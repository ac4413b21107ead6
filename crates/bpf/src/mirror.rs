//! Mirrors of C structs that BPF programs and the daemons exchange: one declaration, the conversions from and to the
//! kernel's bytes, and the comparison with what the BPF object says of its own.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::{AsRawLibbpf, OpenObject};

/// A mirror; made by [`mirror!`](crate::mirror!).
///
/// # Safety
/// The type is `repr(C)`, every bit pattern is one of its values, and it has no padding: the C structs have fields where
/// the compiler would pad.
pub unsafe trait Mirror: Copy {
    /// The struct's name in C.
    const C: &'static str;
    /// Names and offsets of its fields.
    fn fields() -> Vec<(&'static str, usize)>;
}

/// Declares a `repr(C)` mirror of plain numbers, and arrays and mirrors of them.
#[macro_export]
macro_rules! mirror {
    ($(#[$doc:meta])* $name:ident = $c:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)+ }

        // SAFETY: repr(C) of numbers; a test of the module compares it with the C struct.
        unsafe impl $crate::Mirror for $name {
            const C: &'static str = $c;
            fn fields() -> Vec<(&'static str, usize)> {
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)+]
            }
        }
    };
}

/// The bytes of a mirror, for the kernel.
pub fn bytes_of<T: Mirror>(value: &T) -> &[u8] {
    // SAFETY: a mirror has no padding, so every byte is set.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The bytes of a mirror, for the kernel to change.
pub fn bytes_of_mut<T: Mirror>(value: &mut T) -> &mut [u8] {
    // SAFETY: as `bytes_of`, and every bit pattern is a value of a mirror.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// A mirror out of bytes from the kernel; `None` when they are too few.
pub fn from_bytes<T: Mirror>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, the read is unaligned, and every bit pattern is a value of a mirror.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// What differs between a mirror and the struct in a BPF object; `None` when nothing does. For tests.
pub fn difference<T: Mirror>(object: &OpenObject) -> Option<String> {
    // SAFETY: the object outlives the reference, and nobody changes it meanwhile.
    let raw = unsafe { object.as_libbpf_object().as_ref() };
    let name = T::C;
    let Ok(Some(btf)) = Btf::from_bpf_object(raw) else { return Some("the object has no type information".into()) };
    let Some(theirs) = btf.type_by_name::<Struct<'_>>(name) else { return Some(format!("no struct {name}")) };
    let fields = theirs.iter().map(|member| {
        let MemberAttr::Normal { offset } = member.attr else { return ("a bit field".into(), 0) };
        (member.name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()), offset as usize / 8)
    });
    let fields: Vec<(String, usize)> = fields.collect();
    let mine: Vec<(String, usize)> = T::fields().into_iter().map(|(name, at)| (name.to_owned(), at)).collect();
    (mine != fields || size_of::<T>() != theirs.size()).then(|| {
        format!("{name}: {mine:?} in {} bytes here, {fields:?} in {} bytes in C", size_of::<T>(), theirs.size())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    mirror! {
        /// Two words.
        Pair = "pair" {
            a: u32,
            b: [u8; 4],
        }
    }

    #[test]
    fn bytes_go_there_and_back() {
        let mut pair = Pair { a: 0x0102_0304, b: *b"abcd" };
        let bytes = bytes_of(&pair).to_vec();
        assert_eq!(from_bytes::<Pair>(&bytes), Some(pair));
        assert_eq!(from_bytes::<Pair>(&bytes[1..]), None, "too few");
        bytes_of_mut(&mut pair)[7] = b'z';
        assert_eq!(pair.b, *b"abcz");
        assert_eq!(Pair::fields(), [("a", 0), ("b", 4)]);
    }
}
