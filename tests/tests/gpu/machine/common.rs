//! A kernel of a few lines on a machine.

use gradwire::backend::cuda::driver::{DevicePtr, Driver, DriverError, KernelArg, ModuleId, StreamId};
use gradwire_ptx_machine::{Counts, Fault, Machine, Violation};

/// The text of a module with one kernel `k`, whose parameters are pointers `a` and `b`.
pub(crate) fn module(body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry k(\n.param .u64 .ptr .align 1 a,\n.param .u64 .ptr .align 1 b\n)\n{{\n\
         .reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<16>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<16>;\n\
         ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\ncvta.to.global.u64 %rd1, %rd1;\n\
         cvta.to.global.u64 %rd2, %rd2;\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\n{body}\nret;\n}}\n"
    )
}

/// What a launch left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The buffer `b`, as words.
    pub(crate) words: Vec<u32>,
    /// What it cost.
    pub(crate) counts: Counts,
}

/// Runs a body over buffer `a`, which holds `input`, and `b`, of as many zeros.
pub(crate) fn run_seeded(seed: u64, body: &str, grid: u32, threads: u32, input: &[u32]) -> Result<Ran, Fault> {
    let machine = Machine::new((8, 0), seed).counting();
    let ModuleId(module) = machine.load_module(&module(body)).unwrap_or_else(|e| panic!("{e}"));
    let function = machine.function(ModuleId(module), "k").expect("it has one");
    let bytes: Vec<u8> = input.iter().flat_map(|w| w.to_le_bytes()).collect();
    let allocate = || machine.alloc(bytes.len() as u64).expect("there is room");
    let (a, b) = (allocate(), allocate());
    // SAFETY: the machine checks every access, of the host's and of the kernel's.
    let launched = unsafe {
        machine.copy_in(a, &bytes, StreamId::OWN).expect("it fits");
        machine.fill_zero(b, bytes.len() as u64, StreamId::OWN).expect("it fits");
        machine.launch(function, grid, threads, &[KernelArg::Pointer(a), KernelArg::Pointer(b)], StreamId::OWN)
    };
    if let Err(error) = launched {
        let fault = machine.take_faults().pop();
        return Err(fault.unwrap_or_else(|| panic!("no fault, but {error}")));
    }
    let mut out = vec![0; bytes.len()];
    // SAFETY: as above.
    unsafe { machine.copy_out(&mut out, b, StreamId::OWN).expect("it was written") };
    let words = out.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let counts = machine.take_launched().pop().expect("it was launched").counts;
    Ok(Ran { words, counts })
}

/// [`run_seeded`] with some seed.
pub(crate) fn run(body: &str, grid: u32, threads: u32, input: &[u32]) -> Result<Ran, Fault> {
    run_seeded(7, body, grid, threads, input)
}

/// The violation of a body over 64 words of each buffer.
pub(crate) fn violation(body: &str, grid: u32, threads: u32) -> Option<Violation> {
    run(body, grid, threads, &[0; 64]).err().map(|fault| fault.what)
}

/// Why a text is not loaded.
pub(crate) fn refusal(text: &str) -> String {
    match Machine::new((7, 0), 0).load_module(text) {
        Err(DriverError::Jit { log, .. }) => log,
        other => panic!("{other:?}"),
    }
}

/// An address for launches by hand.
pub(crate) fn pointer(at: DevicePtr) -> KernelArg<'static> {
    KernelArg::Pointer(at)
}
