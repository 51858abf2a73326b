// Words of the unit from a window on.
var<workgroup> bins: array<atomic<u32>, 2048>;
const BINS: u32 = 2048u;

// Sets bits from bit `at` on, of which those in the words from `window` on are in the bins.
fn set_bits(window: u32, at: u32, value: u32) {
    let word = (at >> 5u) - window;
    let low = value << (at & 31u);
    if word < BINS && low != 0u {
        atomicOr(&bins[word], low);
    }
    if (at & 31u) != 0u {
        let high = value >> (32u - (at & 31u));
        if word + 1u < BINS && high != 0u {
            atomicOr(&bins[word + 1u], high);
        }
    }
}

fn clear(thread: u32) {
    for (var at = thread; at < BINS; at += 256u) {
        atomicStore(&bins[at], 0u);
    }
    workgroupBarrier();
}
