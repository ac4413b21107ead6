//! Declares a structure of the page once: its atomic form in shared memory, its plain values, and a table of its fields
//! for the comparison with C.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One field of a structure of the page, for the comparison with the C header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, the same as in C.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
}

/// A plain value and its form in memory that the other side may change at any moment.
pub trait Plain: Copy {
    /// The form in shared memory: the same size and alignment, every access atomic.
    type Shared;
    /// Reads the value, word by word.
    fn load(from: &Self::Shared) -> Self;
    /// Writes the value, word by word.
    fn store(self, to: &Self::Shared);
}

impl Plain for u64 {
    type Shared = AtomicU64;
    fn load(from: &AtomicU64) -> Self {
        from.load(Relaxed)
    }
    fn store(self, to: &AtomicU64) {
        to.store(self, Relaxed);
    }
}

impl Plain for u32 {
    type Shared = AtomicU32;
    fn load(from: &AtomicU32) -> Self {
        from.load(Relaxed)
    }
    fn store(self, to: &AtomicU32) {
        to.store(self, Relaxed);
    }
}

impl<const N: usize> Plain for [u64; N] {
    type Shared = [AtomicU64; N];
    fn load(from: &Self::Shared) -> Self {
        std::array::from_fn(|i| from[i].load(Relaxed))
    }
    fn store(self, to: &Self::Shared) {
        for (value, word) in self.iter().zip(to) {
            word.store(*value, Relaxed);
        }
    }
}

/// Declares `$shared`, the structure in shared memory, from plain types; with `=> $values` its plain values too.
macro_rules! mirror {
    ($(#[$doc:meta])* $shared:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $shared { $($(#[$field_doc])* pub $field: <$type as crate::mirror::Plain>::Shared,)+ }

        impl $shared {
            /// Every field with its offset and size, in order.
            pub fn fields() -> Vec<crate::Field> {
                vec![$(crate::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($shared, $field),
                    size: size_of::<$type>(),
                },)+]
            }
        }
    };
    ($(#[$doc:meta])* $shared:ident => $values:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        crate::mirror::mirror! { $(#[$doc])* $shared { $($(#[$field_doc])* $field: $type,)+ } }

        #[doc = concat!("The values of a [`", stringify!($shared), "`], read or to be written.")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $values { $($(#[$field_doc])* pub $field: $type,)+ }

        impl $values {
            /// Reads every field; the whole is consistent only if the caller knows that nobody wrote meanwhile.
            pub fn load(from: &$shared) -> Self {
                Self { $($field: crate::mirror::Plain::load(&from.$field),)+ }
            }

            /// Writes every field.
            pub fn store(self, to: &$shared) {
                $(crate::mirror::Plain::store(self.$field, &to.$field);)+
            }
        }
    };
}
pub(crate) use mirror;
