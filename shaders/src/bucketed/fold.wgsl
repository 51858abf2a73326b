// Folds the partial statistics of a tensor that is one bucket. The kernel brings `partials`, `partial_word`, `factor`,
// `keep` and `send`: where they are, and where what they come to goes.

fn partial_maxima(index: u32) -> vec4<u32> {
    var words = vec4<u32>(0u);
    for (var w = 0u; w < MAXIMA; w++) {
        words[w] = partial_word(index * PARTIAL_WORDS + w);
    }
    return words;
}

fn partial_sum(index: u32, which: u32, shift: u32) -> vec3<u32> {
    if which >= SUMS {
        return vec3<u32>(0u);
    }
    let at = index * PARTIAL_WORDS + MAXIMA + 2u * which;
    return vec3<u32>(shift64(vec2<u32>(partial_word(at), partial_word(at + 1u)), shift), 0u);
}

fn fold(thread: u32) {
    clear(thread);
    workgroupBarrier();
    var most = vec4<u32>(0u);
    for (var p = thread; p < partials(); p += 256u) {
        most = max(most, partial_maxima(p));
    }
    fold_maxima(0u, most);
    workgroupBarrier();
    if looks_twice() {
        let largest = maxima_of(0u);
        let none = vec3<u32>(0u);
        var total = Sums(none, none, none);
        for (var p = thread; p < partials(); p += 256u) {
            let by = shifts(largest, partial_maxima(p));
            total.a = add96(total.a, partial_sum(p, 0u, by.x));
            total.b = add96(total.b, partial_sum(p, 1u, by.y));
            total.c = add96(total.c, partial_sum(p, 2u, by.z));
        }
        fold_sums(0u, total);
    }
    workgroupBarrier();
    if thread == 0u {
        let found = statistic_of(0u, factor());
        keep(0u, found.x);
        keep(1u, found.y);
        let sent = wire(found, factor());
        send(0u, sent.x);
        if SCALARS > 1u {
            send(1u, sent.y);
        }
    }
}
