//! One machine's own copy of a scheduler.

use std::ffi::c_void;
use std::io;

use super::image::Image;
use super::{ABI, CALLS, CgroupPtr, Context, Ops, TaskArgs, TaskFields, TaskPtr};
use crate::kernel::topology::Shape;

/// Which scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The host's, with what watches its vCPUs.
    Host,
    /// The guest's.
    Guest,
}

/// What an object has allocated; in words, so that all of it is aligned.
#[derive(Default)]
pub(super) struct Memory(Vec<Box<[u64]>>);

impl Memory {
    /// `sim_calls.alloc`.
    pub(super) extern "C" fn alloc(memory: *mut c_void, size: u64) -> *mut c_void {
        // SAFETY: `memory` is the address that Object::load() has given the object, which is on the stack of the only
        // thread that uses both.
        let memory = unsafe { &mut *memory.cast::<Self>() };
        // Two words more, so that the block can begin at a multiple of 16.
        let mut block = vec![0_u64; (size as usize).div_ceil(8) + 2].into_boxed_slice();
        let at = block.as_mut_ptr();
        memory.0.push(block);
        at.wrapping_byte_add(at.align_offset(2) * 8).cast()
    }
}

/// Programs of the host's object that hang on tracepoints.
pub(crate) struct Probes {
    pub switch: unsafe extern "C" fn(bool, TaskPtr, TaskPtr, u32) -> i32,
    pub wakeup: unsafe extern "C" fn(TaskPtr) -> i32,
    pub wfx: unsafe extern "C" fn(u64, bool) -> i32,
    pub timer_saved: unsafe extern "C" fn(TaskPtr),
    pub set_timer: unsafe extern "C" fn(*mut c_void, u64, bool),
}

/// A loaded copy of a scheduler with globals and maps of its own.
pub(crate) struct Object {
    image: Image,
    /// What the object has allocated. By address: the object holds it, too.
    memory: *mut Memory,
    context: *mut Context,
    pub ops: Ops,
    pub probes: Option<Probes>,
    pub task_new: unsafe extern "C" fn(*const TaskArgs, *mut TaskFields),
    pub task_group: unsafe extern "C" fn(TaskPtr, CgroupPtr),
    pub task_allow: unsafe extern "C" fn(TaskPtr, i32),
    pub exit_task: unsafe extern "C" fn(TaskPtr),
    pub init_task: unsafe extern "C" fn(TaskPtr) -> i32,
    pub cgroup_new: unsafe extern "C" fn(i32) -> CgroupPtr,
    pub cgroup_init: unsafe extern "C" fn(CgroupPtr, u32, u64, u64, u64) -> i32,
    pub exit: unsafe extern "C" fn(),
    pub forget: unsafe extern "C" fn(),
    pub forget_task: unsafe extern "C" fn(TaskPtr),
    pub forget_group: unsafe extern "C" fn(CgroupPtr),
    pub timer_fire: unsafe extern "C" fn(u32),
}

impl Object {
    /// Loads a copy for a machine of this shape.
    ///
    /// `scheduler` is which of those that the object holds: 0 is Entrain's, 1 scx_simple, on the host 2 scx_bpfland.
    pub(crate) fn load(side: Side, scheduler: u32, shape: Shape) -> io::Result<Self> {
        let image = Image::load(side)?;
        let context = address(&image, "sim").cast::<Context>();
        let memory = Box::into_raw(Box::<Memory>::default());
        // SAFETY: `sim` is a struct sim_context, and each function below has the type that sim.h and runtime.h give it;
        // the ABI number of the object says that they are those of this mirror.
        unsafe {
            assert_eq!((*context).abi, ABI, "the scheduler was compiled against another sim.h");
            (*context).calls = &raw const CALLS;
            (*context).memory = memory.cast();
            (*context).nr_cpus = shape.cpus();
            (*context).nr_llcs = shape.nodes * shape.llcs;
            (*context).nr_nodes = shape.nodes;
            (*context).threads = shape.threads;
            let mut ops = std::mem::zeroed::<Ops>();
            let fill: unsafe extern "C" fn(u32, *mut Ops) = function(&image, "sim_ops");
            fill(scheduler, &raw mut ops);
            Ok(Self {
                memory,
                context,
                ops,
                probes: (side == Side::Host).then(|| Probes {
                    switch: function(&image, "observe_switch"),
                    wakeup: function(&image, "observe_wakeup"),
                    wfx: function(&image, "host_wfx"),
                    timer_saved: function(&image, "sim_timer_saved"),
                    set_timer: function(&image, "sim_timer"),
                }),
                task_new: function(&image, "sim_task_new"),
                task_group: function(&image, "sim_task_group"),
                task_allow: function(&image, "sim_task_allow"),
                exit_task: function(&image, "sim_exit_task"),
                init_task: function(&image, "sim_init_task"),
                cgroup_new: function(&image, "sim_cgroup_new"),
                cgroup_init: function(&image, "sim_cgroup_init"),
                exit: function(&image, "sim_exit"),
                forget: function(&image, "sim_forget"),
                forget_task: function(&image, "sim_forget_task"),
                forget_group: function(&image, "sim_forget_group"),
                timer_fire: function(&image, "sim_timer_fire"),
                image,
            })
        }
    }

    /// The object's `struct sim_context`, to be set before each call.
    #[inline]
    pub(crate) fn context(&self) -> *mut Context {
        self.context
    }

    /// Address of a global of the object.
    ///
    /// # Panics
    /// When there is none of that name: the sources have changed, and whoever names it must follow.
    pub(crate) fn symbol(&self, name: &str) -> *mut c_void {
        address(&self.image, name)
    }

    /// A function of the object.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to a function, the one that the C source gives this function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller vouches for the type.
        unsafe { function(&self.image, name) }
    }

    /// Reads a global. `T` must be the type that the C source gives it.
    pub(crate) fn get<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller names a global of this type; nobody writes it meanwhile.
        unsafe { self.symbol(name).cast::<T>().read_volatile() }
    }

    /// Sets a global, for instance a tunable. `T` must be the type that the C source gives it.
    pub(crate) fn set<T: Copy>(&self, name: &str, value: T) {
        // SAFETY: the caller names a global of this type; nobody else uses the object meanwhile.
        unsafe { self.symbol(name).cast::<T>().write_volatile(value) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the machine is gone, so that nobody holds an address inside the object's memory any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// As Object::function().
///
/// # Safety
/// The same.
unsafe fn function<F: Copy>(image: &Image, name: &str) -> F {
    let address = address(image, name);
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the caller vouches for the type, a pointer to a function.
    unsafe { std::mem::transmute_copy(&address) }
}

fn address(image: &Image, name: &str) -> *mut c_void {
    image.symbol(name).unwrap_or_else(|| panic!("the scheduler has no {name} any more"))
}
