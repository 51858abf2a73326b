//! QSGD's codes, packed as Elias codes behind an encode, and unpacked before a decode, in the same session.

use gradwire::plan::{Limits, Pass};
use gradwire::session::{Role, Sizes};
use gradwire::wire::HEADER_BYTES;
use gradwire::{
    Codec, DecodeMode, DecodePlan, Device, Dtype, EncodePlan, Error, Gradient, Header, Packing, Payload, Qsgd, Seed,
};
use gradwire_tests::cases::Case;
use gradwire_tests::oracle::Kind;

use super::list::Entry;
use super::{Check, Floor, Job, Op, WEIGHT, compare, feedback_plan, job, read};

/// The library's codec of such an entry: a quantizer's setting, with packing behind it.
pub(crate) fn codec(case: &Case, contractive: bool) -> Qsgd {
    let codec = Qsgd::levels(case.levels).elias();
    let codec = case.bucket.map_or(codec.whole_tensor(), |elements| codec.bucket(elements));
    let codec = if case.kind == Kind::QsgdL2 { codec.l2() } else { codec };
    if contractive { codec.contractive() } else { codec }
}

/// Bytes that an operation cannot do without, whatever the levels: of each code a bit at least, and the table.
pub(crate) fn floor(header: &Header, dtype: Dtype) -> Floor {
    let n = header.elements();
    let encoded = header.scalar_bytes() + n.div_ceil(8) + n.div_ceil(256);
    Floor { encoded, ..Floor::new(n as usize, dtype) }
}

/// Encoding and packing as one operation, and unpacking and decoding.
pub(super) fn jobs(entry: &Entry, case: &Case, n: usize, dtype: Dtype, limits: &Limits) -> Result<Vec<Job>, Error> {
    let plan = case.codec().plan(n, dtype)?;
    let (encode, room) = packing(&plan, limits)?;
    let decode = DecodePlan::new(*plan.header(), 1);
    let packing = Packing::new(plan.header(), limits)?;
    let of_decode =
        |decode: &DecodePlan, mode| Ok::<_, Error>([packing.unpack(), &decode.passes(mode, limits)?].concat());
    let (over, add) = (of_decode(&decode, DecodeMode::Write)?, of_decode(&decode, DecodeMode::Add(WEIGHT))?);
    let floor = floor(plan.header(), dtype);
    let job = |op, passes| Job { floor: floor.of(op), ..job(entry.codec(), entry.label(), op, passes) };
    let mut jobs = vec![Job { sizes: room, check: Some(packed(plan)), ..job(Op::Encode, encode.clone()) }];
    if let Some((fused, form)) = feedback_plan(case, n, dtype)? {
        let (passes, room) = self::packing(&fused, limits)?;
        let decode = of_decode(&DecodePlan::new(*fused.header(), 1), DecodeMode::Write)?;
        jobs.push(Job { sizes: room, decode, ..job(Op::Feedback(form), passes) });
    }
    let sizes = room.max(decode.sizes());
    let (before, check) = (encode.clone(), Some(unpacked(plan)));
    jobs.push(Job { sizes, before, check, ..job(Op::Decode, over.clone()) });
    // Decoded once before, so that the sum starts from numbers.
    jobs.push(Job { sizes, before: [encode, over].concat(), ..job(Op::DecodeAdd, add) });
    Ok(jobs)
}

/// The passes that encode and pack, and room for both.
fn packing(plan: &EncodePlan, limits: &Limits) -> Result<(Vec<Pass>, Sizes), Error> {
    let packing = Packing::new(plan.header(), limits)?;
    let passes = [&plan.passes(Seed::new(1), limits)?, packing.pack()].concat();
    Ok((passes, plan.sizes().max(packing.sizes())))
}

/// What the CPU makes of the gradient.
fn of_cpu(plan: &EncodePlan, gradient: Gradient<'_>) -> Result<Payload, String> {
    let cpu = Device::cpu();
    let fixed = cpu.encode_plan(plan, gradient, &mut [], Seed::new(1));
    fixed.and_then(|fixed| cpu.pack(&fixed)).map_err(|e| e.to_string())
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
        let words = expected.header().elias_words().unwrap_or_default();
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
    fn an_entry_is_encoded_and_packed_in_one_operation_and_costs_a_bit_per_code() {
        let n = 1 << 20;
        let entry = list::all().into_iter().find(|entry| matches!(entry.setting, Setting::Packed(_))).unwrap();
        let Setting::Packed(case) = entry.setting else { unreachable!("it was looked for") };
        let jobs = jobs(&entry, &case, n, Dtype::F32, &Limits::NONE).unwrap();
        let names: Vec<String> = jobs.iter().map(|job| job.op.to_string()).collect();
        assert_eq!(names, ["encode", "encode + feedback, contractive", "decode", "decode-add"]);
        let plan = codec(&case, false).plan(n, Dtype::F32).unwrap();
        assert!(plan.is_packed() && plan.header() == case.codec().plan(n, Dtype::F32).unwrap().header());
        let contracted = codec(&case, true).plan(n, Dtype::F32).unwrap().with_feedback().unwrap();
        assert_eq!(contracted.header(), feedback_plan(&case, n, Dtype::F32).unwrap().unwrap().0.header());
        assert_eq!(jobs[0].floor, 4 * n as u64 + 4 * (n as u64 / 512) + n as u64 / 8 + n as u64 / 256);
        let kernels = |job: &Job| job.passes.iter().map(|pass| pass.kernel().name()).collect::<Vec<_>>();
        assert_eq!(kernels(&jobs[0])[1..], ["elias_measure", "elias_offsets", "elias_write"]);
        assert_eq!(kernels(&jobs[2])[..3], ["elias_sums", "elias_offsets", "elias_read"]);
    }
}
