//! The shaders as a table: one for every kernel, and what naga's validation of them does not cover.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytemuck::AnyBitPattern;
use gradwire::CodecId;
use gradwire::plan::Kernel;
use gradwire_kernels::arith::dct::{TURNS_2, TURNS_4, TURNS_8, TURNS_16, TURNS_32};
use gradwire_kernels::arith::elias::BLOCK_UNITS;
use gradwire_kernels::arith::vote::PLANES;
use gradwire_kernels::params::*;
use gradwire_kernels::presets::Preset;
use gradwire_kernels::presets::decode::DecodePreset;
use gradwire_shaders::{SHADERS, Shader};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// So `cargo xtask shaders` writes every module that the host can ask for, and none that it cannot.
#[test]
fn the_table_has_the_kernels_and_nothing_else() {
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    // After them come what WebGPU does not promise to bring to an end, what a shader does in another pass, and settings
    // that have kernels of their own.
    let (shared, of_cuda) = Kernel::ALL.split_at(SHADERS.len());
    assert_eq!(
        sorted(SHADERS.iter().map(|shader| shader.name).collect()),
        sorted(shared.iter().map(|kernel| kernel.name()).collect())
    );
    let fixed = Preset::ALL.map(Kernel::Fixed);
    let fixed_decode = DecodePreset::ALL.map(Kernel::FixedDecode);
    assert_eq!(
        of_cuda,
        [&[Kernel::TopKRest, Kernel::PowerSgdProducts, Kernel::Restore][..], &fixed, &fixed_decode].concat()
    );
}

/// The words of a shader's table of cosines and sines.
fn turns(source: &str) -> Vec<u32> {
    let (_, table) = source.split_once("const TURNS = array<u32, 62>(").expect("a table");
    let (table, _) = table.split_once(");").expect("its end");
    let words = table.split(',').map(str::trim).filter(|word| !word.is_empty());
    let word = |word: &str| word.strip_prefix("0x").and_then(|word| word.strip_suffix('u')).map(str::to_owned);
    words.map(|text| u32::from_str_radix(&word(text).expect("a word"), 16).expect("a number")).collect()
}

#[test]
fn cosines_and_sines_are_those_of_the_kernel() {
    let source = gradwire_shaders::shader("dct_blocks").expect("a shader").source;
    let tables: [&[[f32; 2]]; 5] = [&TURNS_2, &TURNS_4, &TURNS_8, &TURNS_16, &TURNS_32];
    let expected: Vec<u32> = tables.concat().into_iter().flatten().map(f32::to_bits).collect();
    assert_eq!(turns(source), expected);
    let planted = source.replacen("0x3f6c835eu", "0x3f6c835fu", 1);
    assert!(planted != source && turns(&planted) != expected, "a word that differs is not seen");
}

/// Why `tests/tint` exists: naga, and so every test of the WGPU backend, accepts a barrier that only some invocations
/// reach. `tests/tint/check.mjs` shows that Tint refuses the same file. Where naga has learnt to, the check with Tint
/// is a second opinion and no longer the only one, and this test and its file can go.
#[test]
fn naga_accepts_a_barrier_in_non_uniform_flow() {
    let source = include_str!("../../tint/planted/nonuniform_barrier.wgsl");
    let module = naga::front::wgsl::parse_str(source).unwrap_or_else(|e| panic!("{}", e.emit_to_string(source)));
    let result = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
    assert!(result.is_ok(), "naga refuses it now: {result:?}");
}

/// A parameter struct as WGSL has it: its fields and their offsets in words, and the constants that are agreed.
struct Agreed {
    fields: Vec<(String, u32)>,
    /// All of the constants whose names begin with `FLAG_`.
    flags: Vec<(&'static str, u32)>,
    /// Others, of which a shader need not have all.
    constants: Vec<(&'static str, u32)>,
}

/// The fields of a parameter struct in the order of their offsets. Each word holds its own offset, and `Debug` prints
/// both.
///
/// WGSL has no arrays of words in a uniform, so they are cut up. A word of `reserved` is `reserved_0`, `reserved_1`,
/// and so on; any other array is a number of 64 bits, and its words are `name_low` and `name_high`.
fn fields<T: AnyBitPattern + Debug>() -> Vec<(String, u32)> {
    let words: Vec<u32> = (0..(size_of::<T>() / 4) as u32).collect();
    let printed = format!("{:?}", bytemuck::pod_read_unaligned::<T>(bytemuck::cast_slice(&words)));
    let (_, mut rest) = printed.split_once(" { ").unwrap();
    let mut fields = Vec::new();
    while let Some((name, value)) = rest.split_once(": ") {
        let (value, after) = match value.strip_prefix('[') {
            Some(array) => array.split_once(']').unwrap(),
            None => value.split_at(value.find([',', ' ']).unwrap()),
        };
        let values: Vec<u32> = value.split(", ").map(|word| word.parse().unwrap()).collect();
        match (name, &values[..]) {
            (_, &[word]) => fields.push((name.to_owned(), word)),
            ("reserved", words) => {
                fields.extend(words.iter().enumerate().map(|(i, &word)| (format!("reserved_{i}"), word)));
            }
            (_, &[low, high]) => fields.extend([(format!("{name}_low"), low), (format!("{name}_high"), high)]),
            (_, words) => fields.extend(words.iter().enumerate().map(|(i, &word)| (format!("{name}_{i}"), word))),
        }
        rest = after.trim_start_matches([',', ' ']);
    }
    assert_eq!(fields.len(), words.len(), "{printed}");
    fields
}

/// What WGSL calls the constants of a module of `gradwire_kernels::params`: each name as it is, after a prefix.
macro_rules! constants {
    ($prefix:literal, $module:ident: $($name:ident),+) => {
        [$((concat!($prefix, stringify!($name)), $module::$name)),+]
    };
}

/// By the names of the structs.
fn agreed() -> BTreeMap<&'static str, Agreed> {
    let encode = Agreed {
        fields: fields::<EncodeParams>(),
        flags: constants!("FLAG_", encode_flags: L2, NEAREST, FEEDBACK, WIDE, GUARDED, UNIT, CLIPPED, AT_LEAST).into(),
        constants: vec![("WHOLE", WHOLE), ("SPAN", SPAN)],
    };
    let decode = Agreed {
        fields: fields::<DecodeParams>(),
        flags: constants!("FLAG_", decode_flags: ACCUMULATE, WEIGHTED).into(),
        constants: vec![("DECODE_SPAN", DECODE_SPAN)],
    };
    let mut words = vec![
        ("TILE", TILE),
        ("TILES_AGAIN", TILES_AGAIN),
        ("SKETCH_WORDS", SKETCH_WORDS),
        ("ZEROED_WORDS", ZEROED_WORDS),
        ("SUM_WORDS", SUM_WORDS),
        ("HISTOGRAM_BINS", HISTOGRAM_BINS),
        ("HISTOGRAM_WORDS", HISTOGRAM_WORDS),
        ("PIECE", PIECE),
        ("NOWHERE", NOWHERE),
        ("AGAIN_ROOM", room::AGAIN),
        ("NO_ROOM", room::NONE_LEFT),
        ("ANY_SKETCH", room::SKETCHED),
        ("FLOOR_FIXED", segment::FLOOR),
        ("RANGE", state::SPAN),
        ("HIGH_RANGE", state::HIGH_SPAN),
        ("DONE", source::DONE),
    ];
    words.extend(constants!("SEGMENT_", segment: WORDS));
    words.extend(constants!("", segment: START, ELEMENTS, KEEP, FIRST_TILE, OUTPUT, FIXED, UNSAMPLED, SLOTS_LOG2));
    words.extend(constants!("", segment: RANK_LOW, RANK_HIGH, SKETCH_LOW, SKETCH_HIGH, SENT_KEY, SENT_INDEX));
    words.extend(constants!("STATE_", state: WORDS));
    words.extend(constants!("", state: FLOOR, SURE, AGAIN, SOURCE, BASE, RANK, LEFT, COUNT_SURE, COUNT_BAND));
    words.extend(constants!("", state: COUNT_BELOW, HIGH_BASE, CUT, TIES, HIGH_RANK));
    words.extend(constants!("IN_", source: BAND, CANDIDATES, SKETCH));
    let select = Agreed {
        fields: fields::<SelectParams>(),
        flags: constants!("FLAG_", select_flags: FEEDBACK, SENT, WARPS, LAZY, OF_SKETCH, LEAVES_SENT, FORGETS).into(),
        constants: words,
    };
    let scatter = Agreed {
        fields: fields::<ScatterParams>(),
        flags: constants!("FLAG_", scatter_flags: ACCUMULATE).into(),
        constants: Vec::new(),
    };
    let mut flags = Vec::from(constants!("FLAG_", low_rank_flags: RIGHT, FEEDBACK, FORM, PRODUCT, SCAN, TAKE));
    flags.extend(constants!("FLAG_", low_rank_flags: ORTHONORMAL, SEED, START, FORMED, COMMIT, SEND, GUARDED));
    let mut words = vec![
        ("TILE", LOW_RANK_TILE),
        ("TOGETHER", LOW_RANK_TOGETHER),
        ("TILE_WORDS", LOW_RANK_TILE_WORDS),
        ("PAD", LOW_RANK_PAD),
        ("DROPPED", mark::DROPPED),
        ("WARY", mark::WARY),
    ];
    words.extend(constants!("MATRIX_", matrix: WORDS));
    words.extend(constants!("", matrix: FIRST, ROWS, COLUMNS, PADDED, SENT, SHARES, FIRST_GROUP, TENSOR));
    words.extend(constants!("MARK_", mark: WORDS, SENT, POISONED, WARY_FOR, OUTCOME));
    let low_rank = Agreed { fields: fields::<LowRankParams>(), flags, constants: words };
    let elias =
        Agreed { fields: fields::<EntropyParams>(), flags: Vec::new(), constants: vec![("BLOCK_UNITS", BLOCK_UNITS)] };
    let rotate = Agreed {
        fields: fields::<RotateParams>(),
        flags: constants!("FLAG_", rotate_flags: INVERSE).into(),
        constants: Vec::new(),
    };
    let dct = Agreed {
        fields: fields::<DctParams>(),
        flags: constants!("FLAG_", dct_flags: INVERSE).into(),
        constants: vec![("HALF_TURN", std::f32::consts::FRAC_1_SQRT_2.to_bits())],
    };
    let tiles = Agreed {
        fields: fields::<TilesParams>(),
        flags: constants!("FLAG_", tiles_flags: INVERSE).into(),
        constants: Vec::new(),
    };
    let vote = Agreed { fields: fields::<VoteParams>(), flags: Vec::new(), constants: vec![("PLANES", PLANES as u32)] };
    let random = Agreed {
        fields: fields::<RandomParams>(),
        flags: constants!("FLAG_", random_flags: TAKE, ACCUMULATE, ADD).into(),
        constants: Vec::new(),
    };
    let momentum = Agreed { fields: fields::<MomentumParams>(), flags: Vec::new(), constants: Vec::new() };
    BTreeMap::from([
        ("EncodeParams", encode),
        ("DecodeParams", decode),
        ("SelectParams", select),
        ("ScatterParams", scatter),
        ("LowRankParams", low_rank),
        ("EntropyParams", elias),
        ("MomentumParams", momentum),
        ("RotateParams", rotate),
        ("DctParams", dct),
        ("TilesParams", tiles),
        ("VoteParams", vote),
        ("RandomParams", random),
    ])
}

/// What a shader and Rust differ in; nothing where they agree.
fn differences(name: &str, module: &naga::Module, agreed: &BTreeMap<&'static str, Agreed>) -> Vec<String> {
    let mut found = Vec::new();
    let uniform = module.global_variables.iter().find(|(_, v)| v.space == naga::AddressSpace::Uniform);
    let (_, uniform) = uniform.unwrap_or_else(|| panic!("{name} has no parameters"));
    let ty = &module.types[uniform.ty];
    let naga::TypeInner::Struct { members, span } = &ty.inner else { panic!("{name}'s parameters are no struct") };
    let of = ty.name.as_deref().unwrap_or("a struct without a name");
    let Some(agreed) = agreed.get(of) else {
        return vec![format!("{name}: {of} is no struct of gradwire_kernels::params")];
    };
    let members: Vec<(String, u32)> = members
        .iter()
        .map(|member| {
            let scalar = module.types[member.ty].inner.scalar();
            assert_eq!(scalar, Some(naga::Scalar::U32), "{name}: {:?} is no u32", member.name);
            (member.name.clone().unwrap_or_default(), member.offset / 4)
        })
        .collect();
    for pair in members.iter().filter(|pair| !agreed.fields.contains(pair)) {
        found.push(format!("{name}: WGSL has {} at word {} of {of}, where Rust has not", pair.0, pair.1));
    }
    for pair in agreed.fields.iter().filter(|pair| !members.contains(pair)) {
        found.push(format!("{name}: Rust has {} at word {} of {of}, where WGSL has not", pair.0, pair.1));
    }
    if *span as usize != agreed.fields.len() * 4 {
        found.push(format!("{name}: {of} has {span} bytes in WGSL, and {} in Rust", agreed.fields.len() * 4));
    }
    for (_, constant) in module.constants.iter() {
        let Some(constant_name) = constant.name.as_deref() else { continue };
        let naga::Expression::Literal(naga::Literal::U32(value)) = module.global_expressions[constant.init] else {
            continue;
        };
        let is_flag = constant_name.starts_with("FLAG_");
        let known = if is_flag { &agreed.flags } else { &agreed.constants };
        match known.iter().find(|(known, _)| *known == constant_name) {
            Some((_, rust)) if *rust != value => {
                found.push(format!("{name}: {constant_name} is {value} in WGSL, and {rust} in Rust"));
            }
            None if is_flag => found.push(format!("{name}: {constant_name} is no flag of {of}")),
            _ => {}
        }
    }
    found
}

/// A constant of a module.
fn constant(module: &naga::Module, name: &str) -> Option<u32> {
    let (_, constant) = module.constants.iter().find(|(_, constant)| constant.name.as_deref() == Some(name))?;
    match module.global_expressions[constant.init] {
        naga::Expression::Literal(naga::Literal::U32(value)) => Some(value),
        _ => None,
    }
}

#[test]
fn a_codec_has_the_words_that_its_row_has() {
    for codec in CodecId::ALL.iter().filter(|codec| codec.has_whole_tensors()) {
        let shader = gradwire_shaders::shader(codec.entries().combine).unwrap();
        let module = parse(shader.source);
        assert_eq!(constant(&module, "SCALARS"), Some(codec.scalars(codec.widths()[0]) as u32), "{}", codec.name());
        assert_eq!(constant(&module, "PARTIAL_WORDS"), Some(codec.partial_words()), "{}", codec.name());
    }
}

fn parse(source: &str) -> naga::Module {
    naga::front::wgsl::parse_str(source).unwrap_or_else(|e| panic!("{}", e.emit_to_string(source)))
}

#[test]
fn parameters_are_field_for_field_what_rust_says() {
    let agreed = agreed();
    let found: Vec<String> =
        SHADERS.iter().flat_map(|Shader { name, source, .. }| differences(name, &parse(source), &agreed)).collect();
    assert!(found.is_empty(), "{found:#?}");
    // One of each struct with a fault in it, which must be found.
    for (name, right, wrong) in [
        ("qsgd_encode", "    n: u32,\n    first_unit: u32,", "    first_unit: u32,\n    n: u32,"),
        ("uniform_decode", "    reserved_1: u32,\n", ""),
        ("topk_filter", "    block: u32,\n", "    blocks: u32,\n"),
        ("sparse_scatter", "    weight: u32,\n", "    weight: u32,\n    more: u32,\n"),
        ("powersgd_left", "    key_low: u32,\n    key_high: u32,", "    key_high: u32,\n    key_low: u32,"),
        ("dct_tiles", "    lies: u32,\n    ordered: u32,", "    ordered: u32,\n    lies: u32,"),
        ("finite_scan", "FLAG_FEEDBACK: u32 = 4u", "FLAG_FEEDBACK: u32 = 2u"),
        ("topk_emit", "const SENT_KEY: u32 = 13u", "const SENT_KEY: u32 = 12u"),
        ("powersgd_plain", "const FLAG_GUARDED: u32", "const FLAG_ANOTHER: u32 = 8u;\nconst FLAG_GUARDED: u32"),
    ] {
        let shader = gradwire_shaders::shader(name).unwrap();
        assert_eq!(shader.source.matches(right).count(), 1, "{name}: {right:?}");
        let module = parse(&shader.source.replace(right, wrong));
        assert!(!differences(name, &module, &agreed).is_empty(), "{name}: {wrong:?} is not found");
    }
}
