//! x
use std::sync::Arc;
use gradwire::{Device, TopK};
use gradwire::backend::cuda::Cuda;
use gradwire_ptx_machine::Machine;
use gradwire_tests::{selections, sparse, cases};
#[test]
fn t() {
    let machine = Arc::new(Machine::new((9, 0), 1).counting());
    let d = Device::from_cuda(Cuda::with_driver(machine.clone(), None).unwrap());
    let n = 1 << 20;
    for (fill, part) in [(sparse::FILLS[0], 0.01), (sparse::FILLS[0], 0.1), (sparse::FILLS[7], 0.01), (selections::MISLEADING[0], 0.01), (selections::MISLEADING[1], 0.01)] {
        let x = (fill.1)(n);
        machine.take_launched();
        d.encode_sparse(&TopK::fraction(part), &x, cases::seed()).unwrap();
        eprintln!("== {} {part}", fill.0);
        for l in machine.take_launched() {
            let c = &l.counts;
            let per = |b: u64| b as f64 / n as f64;
            eprintln!("{:16} loads {:.4} (needed {:.4}) atomics {:.4} stores {:.4} instr {:.2}", l.kernel, per(c.loads.moved()), per(c.loads.needed), per(c.atomics.moved()), per(c.stores.moved()), c.instructions as f64 * 32.0 / n as f64);
        }
    }
}
