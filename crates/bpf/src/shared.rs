//! Variables of BPF programs, which user space sees in memory.

/// A copy of a variable that BPF programs may change at this very moment. Each of its words is read whole; one may be
/// newer than another.
pub fn copy_of<T: Copy>(variable: &T) -> T {
    // SAFETY: a valid, aligned reference. Volatile, since the compiler doesn't know of the other writer.
    unsafe { std::ptr::read_volatile(variable) }
}
