//! Codes that are packed after an encode, and unpacked before a decode, in the same session.

use gradwire::plan::{Limits, Pass};
use gradwire::session::{Role, Sizes};
use gradwire::wire::HEADER_BYTES;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Entropy, Error, Gradient, Header, Packing, Payload, Seed,
};
use gradwire_tests::cases::Case;

use super::list::Entry;
use super::{Check, Floor, Job, Op, WEIGHT, compare, feedback_plan, job, read};

/// The library's plan of such an entry: a quantizer's setting, with packing after it.
pub(crate) fn plan(case: &Case, entropy: Entropy, n: usize, dtype: Dtype) -> Result<EncodePlan, Error> {
    case.codec().plan(n, dtype)?.packed(entropy)
}

/// Bytes that an operation cannot do without, whatever the levels: of each code a bit at least as Elias codes, and of
/// each unit 19 bytes in base 3, for 256 zeros; as places none; and the table.
pub(crate) fn floor(header: &Header, entropy: Entropy, dtype: Dtype) -> Floor {
    let n = header.elements();
    let codes = match entropy {
        Entropy::Base3 => 20 * n.div_ceil(1280),
        Entropy::Sparse => 4 * n.div_ceil(16_384),
        _ => n.div_ceil(8) + n.div_ceil(256),
    };
    let encoded = header.scalar_bytes() + codes;
    Floor { encoded, ..Floor::new(n as usize, dtype) }
}

/// Encoding and packing as one operation, and unpacking and decoding.
pub(super) fn jobs(
    entry: &Entry,
    (case, entropy): (&Case, Entropy),
    n: usize,
    dtype: Dtype,
    limits: &Limits,
) -> Result<Vec<Job>, Error> {
    let plan = case.codec().plan(n, dtype)?;
    let packing = |plan: &EncodePlan| packing(plan, entropy, limits);
    let (encode, room) = packing(&plan)?;
    let decode = DecodePlan::new(*plan.header(), 1);
    let unpacking = Packing::new(plan.header(), entropy, limits)?;
    let of_decode =
        |decode: &DecodePlan, mode| Ok::<_, Error>([unpacking.unpack(), &decode.passes(mode, limits)?].concat());
    let (over, add) = (of_decode(&decode, DecodeMode::Write)?, of_decode(&decode, DecodeMode::Add(WEIGHT))?);
    let floor = floor(plan.header(), entropy, dtype);
    let job = |op, passes| Job { floor: floor.of(op), ..job(entry.codec(), entry.label(), op, passes) };
    let mut jobs =
        vec![Job { sizes: room, check: Some(packed(plan.packed(entropy)?)), ..job(Op::Encode, encode.clone()) }];
    if let Some((fused, form)) = feedback_plan(case, n, dtype)? {
        let (passes, room) = packing(&fused)?;
        let decode = of_decode(&DecodePlan::new(*fused.header(), 1), DecodeMode::Write)?;
        jobs.push(Job { sizes: room, decode, ..job(Op::Feedback(form), passes) });
    }
    let sizes = room.max(decode.sizes());
    let (before, check) = (encode.clone(), Some(unpacked(plan.packed(entropy)?)));
    jobs.push(Job { sizes, before, check, ..job(Op::Decode, over.clone()) });
    // Decoded once before, so that the sum starts from numbers.
    jobs.push(Job { sizes, before: [encode, over].concat(), ..job(Op::DecodeAdd, add) });
    Ok(jobs)
}

/// The passes that encode and pack, and room for both.
fn packing(plan: &EncodePlan, entropy: Entropy, limits: &Limits) -> Result<(Vec<Pass>, Sizes), Error> {
    let packing = Packing::new(plan.header(), entropy, limits)?;
    let passes = [&plan.passes(Seed::new(1), limits)?, packing.pack()].concat();
    Ok((passes, plan.sizes().max(packing.sizes())))
}

/// What the CPU makes of the gradient.
fn of_cpu(plan: &EncodePlan, gradient: Gradient<'_>) -> Result<Payload, String> {
    Device::cpu().encode_plan(plan, gradient, &mut [], Seed::new(1)).map_err(|e| e.to_string())
}

/// What was decoded is what the CPU decodes: a level of zero to +0, whose sign packing does not send.
fn unpacked(plan: EncodePlan) -> Check {
    Box::new(move |session, at, gradient| {
        let expected = Device::cpu().decode(&of_cpu(&plan, gradient)?).map_err(|e| e.to_string())?;
        let got = read(session, Role::Output, at, 4 * expected.len())?;
        compare("decoded values", &got, bytemuck::cast_slice(&expected))
    })
}

/// The packed codes are the CPU's, and as many.
fn packed(plan: EncodePlan) -> Check {
    Box::new(move |session, at, gradient| {
        let expected = of_cpu(&plan, gradient)?;
        let codes_at = HEADER_BYTES + plan.header().scalar_bytes() as usize;
        let (scalars, codes) = (&expected.as_bytes()[HEADER_BYTES..codes_at], &expected.as_bytes()[codes_at..]);
        let words = expected.header().packed_words().unwrap_or_default();
        compare("words of packed codes", &read(session, Role::Status, at, 4)?, &words.to_le_bytes())?;
        compare("scalars", &read(session, Role::Scalars, at, scalars.len())?, scalars)?;
        compare("packed codes", &read(session, Role::Values, at, codes.len())?, codes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::list::{self, Setting};

    #[test]
    fn an_entry_is_encoded_and_packed_in_one_operation_and_costs_what_the_shortest_codes_take() {
        let n = 1 << 20;
        let names = |entry: &Entry, jobs: &[Job]| {
            let feedback = if entry.codec() == "QSGD" { "encode + feedback, contractive" } else { "encode + feedback" };
            let found: Vec<String> = jobs.iter().map(|job| job.op.to_string()).collect();
            assert!(found.len() == 4 && found[1].starts_with(feedback), "{found:?}");
        };
        let kernels = |job: &Job| job.passes.iter().map(|pass| pass.kernel().name()).collect::<Vec<_>>();
        let mut packed = 0;
        for entry in list::all() {
            let Setting::Packed(case, entropy) = entry.setting else { continue };
            let jobs = jobs(&entry, (&case, entropy), n, Dtype::F32, &Limits::NONE).unwrap();
            names(&entry, &jobs);
            let plan = plan(&case, entropy, n, Dtype::F32).unwrap();
            assert!(plan.is_packed() && plan.header() == case.codec().plan(n, Dtype::F32).unwrap().header());
            let (buckets, codes, name) = match entropy {
                Entropy::Base3 => (n as u64 / 512, 20 * 820, "base3"),
                Entropy::Sparse => (1, 4 * 64, "entropy_places"),
                _ => (n as u64 / 512, n as u64 / 8 + n as u64 / 256, "elias"),
            };
            let sums = if entropy == Entropy::Sparse { "entropy_places_sums" } else { "entropy_sums" };
            assert_eq!(jobs[0].floor, 4 * n as u64 + 4 * buckets + codes);
            let of = |stage: &str| format!("{name}_{stage}");
            let packing = kernels(&jobs[0]);
            assert_eq!(packing[packing.len() - 3..], [&of("measure"), "entropy_offsets", &of("write")]);
            assert_eq!(kernels(&jobs[2])[..3], [sums, "entropy_offsets", &of("read")]);
            packed += 1;
        }
        assert_eq!(packed, 3);
    }
}
