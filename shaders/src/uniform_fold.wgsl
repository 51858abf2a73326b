// The largest complement of a key, and the largest key.
var<workgroup> low_key: atomic<u32>;
var<workgroup> high_key: atomic<u32>;

// Folds the partial statistics of a tensor that is one bucket; what `bind_combine` and `bind_combine_segments` bring tells
// where they are, and where what they come to goes.
fn combine(thread: u32) {
    if thread == 0u {
        atomicStore(&low_key, 0u);
        atomicStore(&high_key, 0u);
    }
    workgroupBarrier();
    var low = 0xffffffffu;
    var high = 0u;
    for (var p = thread; p < partials(); p += 256u) {
        low = min(low, partial(p, 0u));
        high = max(high, partial(p, 1u));
    }
    atomicMax(&low_key, ~low);
    atomicMax(&high_key, high);
    workgroupBarrier();
    if thread == 0u {
        let least = from_key(~atomicLoad(&low_key));
        let most = from_key(atomicLoad(&high_key));
        let wire = wire_of(least, most, beta());
        keep(0u, least);
        keep(1u, most);
        send(0u, wire.x);
        send(1u, wire.y);
    }
}
