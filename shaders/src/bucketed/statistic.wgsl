// Statistics of buckets in workgroup memory, as words that threads fold into. The kernel brings
//   BUCKETS      how many buckets there are;
//   SUM_WORDS    words of a sum: 2, or 3 for sums of 96 bits;
//   SCRATCH      words of the array, at least BUCKETS * WORDS.

// Words of a statistic: the maxima, and then the sums. Word w of bucket b is at w * BUCKETS + b.
const WORDS: u32 = MAXIMA + SUM_WORDS * SUMS;
// Words of a partial statistic between launches: the maxima, and then two words per sum.
const PARTIAL_WORDS: u32 = (MAXIMA + 2u * SUMS + 3u) / 4u * 4u;

var<workgroup> scratch: array<atomic<u32>, SCRATCH>;

fn clear(thread: u32) {
    for (var at = thread; at < WORDS * BUCKETS; at += 256u) {
        atomicStore(&scratch[at], 0u);
    }
}

fn fold_maxima(bucket: u32, words: vec4<u32>) {
    atomicMax(&scratch[bucket], words.x);
    if MAXIMA > 1u {
        atomicMax(&scratch[BUCKETS + bucket], words.y);
    }
    if MAXIMA > 2u {
        atomicMax(&scratch[2u * BUCKETS + bucket], words.z);
    }
    if MAXIMA > 3u {
        atomicMax(&scratch[3u * BUCKETS + bucket], words.w);
    }
}

fn maxima_of(bucket: u32) -> vec4<u32> {
    var words = vec4<u32>(atomicLoad(&scratch[bucket]), 0u, 0u, 0u);
    if MAXIMA > 1u {
        words.y = atomicLoad(&scratch[BUCKETS + bucket]);
    }
    if MAXIMA > 2u {
        words.z = atomicLoad(&scratch[2u * BUCKETS + bucket]);
    }
    if MAXIMA > 3u {
        words.w = atomicLoad(&scratch[3u * BUCKETS + bucket]);
    }
    return words;
}

// Adds to a word, and gives the carry. Each addition carries or not by what it found, so that all carries together are
// right whatever the order.
fn add_word(at: u32, amount: u32) -> u32 {
    let before = atomicAdd(&scratch[at], amount);
    return select(0u, 1u, before + amount < before);
}

fn fold_sum(which: u32, bucket: u32, sum: vec3<u32>) {
    let at = (MAXIMA + SUM_WORDS * which) * BUCKETS + bucket;
    let carry = add_word(at, sum.x);
    if SUM_WORDS < 3u {
        atomicAdd(&scratch[at + BUCKETS], sum.y + carry);
    } else {
        let middle = sum.y + carry;
        let over = select(0u, 1u, middle < carry) + add_word(at + BUCKETS, middle);
        atomicAdd(&scratch[at + 2u * BUCKETS], sum.z + over);
    }
}

fn fold_sums(bucket: u32, all: Sums) {
    if SUMS > 0u {
        fold_sum(0u, bucket, all.a);
    }
    if SUMS > 1u {
        fold_sum(1u, bucket, all.b);
    }
    if SUMS > 2u {
        fold_sum(2u, bucket, all.c);
    }
}

fn sum_of(which: u32, bucket: u32) -> vec3<u32> {
    if which >= SUMS {
        return vec3<u32>(0u);
    }
    let at = (MAXIMA + SUM_WORDS * which) * BUCKETS + bucket;
    var sum = vec3<u32>(atomicLoad(&scratch[at]), atomicLoad(&scratch[at + BUCKETS]), 0u);
    if SUM_WORDS > 2u {
        sum.z = atomicLoad(&scratch[at + 2u * BUCKETS]);
    }
    return sum;
}

// What the folded words of a bucket come to, with this factor of the tensor.
fn statistic_of(bucket: u32, factor: u32) -> vec2<u32> {
    return statistic(maxima_of(bucket), Sums(sum_of(0u, bucket), sum_of(1u, bucket), sum_of(2u, bucket)), factor);
}
