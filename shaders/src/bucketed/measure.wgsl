// Looks at the values of a span's buckets, once for the maxima and, where the codec says so, again for the sums.

fn maxima_where(here: bool, v: u32) -> vec4<u32> {
    return select(vec4<u32>(0u), maxima(v), here);
}

fn terms_where(here: bool, v: u32, largest: vec4<u32>) -> vec4<u32> {
    return select(vec4<u32>(0u), terms(v, largest), here);
}

// Leaves the statistics of the span's buckets, of 2^shift rows of 32 elements, in workgroup memory. A lane takes 32
// rows, and folds what it has of a bucket as soon as it has the bucket's last row: of four rows the second one may be a
// last one where a bucket has at most two rows, and the first and the third where it has one.
fn measure(span: u32, thread: u32, shift: u32) {
    clear(thread);
    workgroupBarrier();
    let first_row = (thread >> 5u) * 32u;
    let first = span + first_row * 32u + (thread & 31u);
    let last_of_bucket = (1u << shift) - 1u;
    var most = vec4<u32>(0u);
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let here = exist(e);
        let v = load(e);
        let row = first_row + q * 4u;
        most = max(most, maxima_where(here.x, v.x));
        if shift == 0u {
            fold_maxima(row, most);
            most = vec4<u32>(0u);
        }
        most = max(most, maxima_where(here.y, v.y));
        if shift <= 1u {
            fold_maxima((row + 1u) >> shift, most);
            most = vec4<u32>(0u);
        }
        most = max(most, maxima_where(here.z, v.z));
        if shift == 0u {
            fold_maxima(row + 2u, most);
            most = vec4<u32>(0u);
        }
        most = max(most, maxima_where(here.w, v.w));
        if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
            fold_maxima((row + 3u) >> shift, most);
            most = vec4<u32>(0u);
        }
    }
    workgroupBarrier();
    if !looks_twice() {
        return;
    }
    var added = vec4<u32>(0u);
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let here = exist(e);
        let v = load(e);
        let row = first_row + q * 4u;
        var largest = maxima_of(row >> shift);
        added += terms_where(here.x, v.x, largest);
        if shift == 0u {
            fold_sums(row, sums(added));
            added = vec4<u32>(0u);
            largest = maxima_of(row + 1u);
        }
        added += terms_where(here.y, v.y, largest);
        if shift <= 1u {
            fold_sums((row + 1u) >> shift, sums(added));
            added = vec4<u32>(0u);
            largest = maxima_of((row + 2u) >> shift);
        }
        added += terms_where(here.z, v.z, largest);
        if shift == 0u {
            fold_sums(row + 2u, sums(added));
            added = vec4<u32>(0u);
            largest = maxima_of(row + 3u);
        }
        added += terms_where(here.w, v.w, largest);
        if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
            fold_sums((row + 3u) >> shift, sums(added));
            added = vec4<u32>(0u);
        }
    }
    workgroupBarrier();
}
