//! Recipes: their texts, what is refused, and what they promise.

use gradwire::{
    Dct, Drive, Dtype, Eden, Entropy, Error, Estimate, Float, Natural, NonFinite, OneBit, Policy, PowerSgd, Qsgd,
    Quantile, Quantize, RandomK, Recipe, RecipeError, Rotation, Segment, Shift, Sign, Tensor, Ternary, TopK, Tree,
    Uniform,
};
use gradwire_tests::cases::{self, Random};

/// A recipe for each stage and setting, and some of two.
fn recipes() -> Vec<Recipe> {
    let qsgd = [
        Qsgd::bits(4),
        Qsgd::bits(2).bucket(64),
        Qsgd::levels(5).l2().bucket(8192),
        Qsgd::bits(16).whole_tensor(),
        Qsgd::bits(3).contractive(),
    ];
    let uniform =
        [Uniform::bits(8), Uniform::bits(1).bucket(32), Uniform::bits(4).nearest(), Uniform::bits(2).contractive()];
    let select = [
        TopK::fraction(0.01),
        TopK::fraction(1.0 / 3.0),
        TopK::count(7).clamped(),
        TopK::blocks(64, 4).clamped(),
        TopK::above(1.5e-7),
        TopK::estimate(0.01, Estimate::Gaussian),
        TopK::estimate(1.0 / 3.0, Estimate::Sidco),
        TopK::segments(&[Segment { elements: 300, k: 3 }, Segment { elements: 700, k: 0 }]),
    ];
    let factors = [
        PowerSgd::rank(4),
        PowerSgd::rank(1).iterations(3).min_compression(0.0),
        PowerSgd::rank(2).one_sided().without_feedback(),
    ];
    let mut all = vec![Recipe::none(), Recipe::none().non_finite(NonFinite::Error)];
    all.extend(qsgd.map(Recipe::from));
    all.extend(uniform.map(Recipe::from));
    all.extend(
        [OneBit::new(), OneBit::new().bucket(512), OneBit::new().whole_tensor().without_feedback()].map(Recipe::from),
    );
    all.extend(factors.map(Recipe::from));
    for select in select {
        all.push(select.clone().into());
        all.push(Recipe::from(select.clone()).feedback());
        all.push(Recipe::from(select.clone()).momentum(0.9));
        all.push(Recipe::from(select.clone().values(Dtype::Bf16)).feedback());
        all.push(Recipe::from(select.clone()).quantize(Dtype::F16));
        all.push(Recipe::from(select.clone().then(Qsgd::bits(4).bucket(32))).feedback().non_finite(NonFinite::Error));
        all.push(Recipe::from(select.clone().then(Qsgd::bits(4).bucket(32).elias())).feedback());
        all.push(Recipe::from(select.clone().then(OneBit::new().whole_tensor())).feedback());
        all.push(Recipe::from(select.clone().then(Natural::compression())));
        all.push(Recipe::from(select.then(Uniform::bits(8).bucket(64))).momentum(0.0));
    }
    all.push(Recipe::from(Qsgd::bits(8).non_finite(NonFinite::Error)).momentum(0.3));
    all.push(Recipe::from(Qsgd::bits(4).l2().bucket(32).elias()).feedback());
    all.push(Recipe::from(Qsgd::bits(16).bucket(512).delta()).feedback());
    all.push(Recipe::from(Float::int16().error_bound(0.001).delta()));
    all.push(Recipe::from(Qsgd::bits(2).l2().whole_tensor().sparse()).feedback());
    all.push(Recipe::from(Float::int8().error_bound(0.001).sparse()));
    all.push(Recipe::from(Ternary::nearest(1.5).sparse()));
    all.push(Recipe::from(TopK::fraction(0.01)).shift(Shift::Ef21));
    all.push(Recipe::from(OneBit::new()).shift(Shift::Ef21));
    all.push(Recipe::from(Qsgd::bits(4).bucket(64)).shift(Shift::Diana { alpha: None }));
    all.push(Recipe::from(Uniform::bits(8)).shift(Shift::Diana { alpha: Some(0.1) }));
    all.push(Recipe::from(OneBit::new()).feedback_weights(0.5, 1.0));
    all.push(Recipe::from(Natural::compression()).feedback());
    all.push(Recipe::from(Natural::bits(3).bucket(64).contractive()).shift(Shift::Ef21));
    all.push(Recipe::from(Natural::bits(2).bucket(64)));
    all.push(Recipe::from(Natural::bits(4).whole_tensor()));
    all.push(Recipe::from(Tree::new().contractive()));
    all.push(Recipe::from(Quantile::levels(64)));
    all.push(Recipe::from(Quantile::levels(16).bucket(256)).feedback().non_finite(NonFinite::Error));
    all.push(Recipe::from(Quantile::levels(4)).rotate(Rotation::default()));
    all.push(Recipe::from(Sign::new()));
    all.push(Recipe::from(Ternary::new().clipped(2.5).whole_tensor()));
    all.push(Recipe::from(Ternary::nearest(1.75).bucket(64)));
    all.push(Recipe::from(Ternary::new().contractive()).feedback());
    all.push(Recipe::from(Ternary::nearest(1.5).elias()));
    all.push(Recipe::from(Ternary::nearest(1.5).base3()));
    all.push(Recipe::from(Qsgd::bits(2).base3()));
    let tenth = || TopK::fraction(0.1);
    all.push(Recipe::from(tenth().then(Ternary::new().bucket(32).base3())));
    all.push(Recipe::from(tenth().then(Ternary::nearest(1.5).bucket(32).elias())).feedback());
    all.push(Recipe::from(tenth().then(Sign::new())).feedback());
    all.push(Recipe::from(tenth().then(Tree::new().contractive())).feedback());
    all.push(Recipe::from(tenth().then(Quantile::levels(64).bucket(256))).feedback());
    all.push(Recipe::from(tenth().then(Float::e4m3().scaled().bucket(32))));
    all.push(Recipe::from(RandomK::fraction(0.05)));
    all.push(Recipe::from(Qsgd::bits(4)).rotate(Rotation::default()));
    all.push(Recipe::from(Uniform::bits(4)).rotate(Rotation::block(64)).non_finite(NonFinite::Error));
    all.push(Recipe::from(Sign::new()).without_feedback().rotate(Rotation::block(8192)));
    all.push(Recipe::from(RandomK::count(30)).without_feedback());
    all.push(Recipe::from(TopK::blocks(4096, 32)).dct(Dct::default()).feedback_weights(0.999, 1.0));
    all.push(Recipe::from(Qsgd::bits(4).bucket(64)).dct(Dct::block(8)).feedback());
    all.push(Recipe::from(RandomK::fraction(0.2)).dct(Dct::block(16)));
    all.push(Recipe::from(TopK::blocks(4096, 32)).dct(Dct::default().tiles()).feedback_weights(0.999, 1.0));
    all.push(Recipe::from(Qsgd::bits(4).bucket(64)).dct(Dct::block(8).tiles()).feedback());
    all.push(Recipe::from(RandomK::fraction(0.1).unbiased()));
    all.push(Recipe::from(Float::f16()));
    all.push(Recipe::from(Float::e5m2().scaled()));
    all.push(Recipe::from(Float::e2m1().scaled().nearest()).feedback());
    all.push(Recipe::from(Sign::unit().bucket(64)));
    all.push(Recipe::from(Drive::new()));
    all.push(Recipe::from(Drive::new().bucket(1024)).rotate(Rotation::block(1024)));
    all.push(Recipe::from(Eden::bits(4)));
    all.push(Recipe::from(Eden::bits(2).bucket(1024)).rotate(Rotation::block(1024)).non_finite(NonFinite::Error));
    all.push(Recipe::from(Qsgd::bits(4)).rotate(Rotation::default().own()));
    all.push(Recipe::from(Qsgd::bits(4)).rotate(Rotation::block(64).own()));
    all.push(Recipe::from(TopK::fraction(0.001)).momentum(0.9).warm_up(4000));
    all.push(Recipe::from(TopK::fraction(0.5).clamped()).warm_up(1));
    all.push(Recipe::from(TopK::fraction(0.001)).momentum(0.9).nesterov().clip(2.5).warm_up(4000));
    all.push(Recipe::from(Sign::unit()).momentum_alone(0.9).nesterov().vote());
    all.push(Recipe::from(TopK::fraction(0.01)).momentum(0.9).unmasked());
    all.push(Recipe::none().momentum_alone(0.9).nesterov());
    all.push(Recipe::from(PowerSgd::rank(2)).clip(1e-3));
    all.push(Recipe::from(PowerSgd::rank(2)).quantize(Qsgd::bits(8).elias()));
    all.push(Recipe::from(PowerSgd::rank(2).one_sided().without_feedback()).quantize(OneBit::new()));
    all.push(Recipe::from(TopK::fraction(0.01)).momentum(0.9).feedback_weights(0.75, 2.0));
    all
}

#[test]
fn a_text_gives_back_its_recipe() {
    for recipe in recipes() {
        recipe.check().unwrap_or_else(|error| panic!("{recipe}: {error}"));
        let text = recipe.to_string();
        assert_eq!(text.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")), recipe, "{text}");
        // In any order of the stages.
        let turned: Vec<&str> = text.split('+').rev().collect();
        assert_eq!(turned.join("+").parse::<Recipe>().ok().as_ref(), Some(&recipe), "{text}");
    }
}

#[test]
fn texts_as_they_are_typed() {
    let cases = [
        ("none", Recipe::none()),
        ("qsgd", Recipe::from(Qsgd::bits(4))),
        ("qsgd:bits=4,bucket=64+ef", Recipe::from(Qsgd::bits(4).bucket(64)).feedback()),
        ("topk:0.01+momentum=0.9", Recipe::from(TopK::fraction(0.01)).momentum(0.9)),
        ("topk:k=100+ef", Recipe::from(TopK::count(100)).feedback()),
        ("topk:persign,0.1+ef", Recipe::from(TopK::per_sign(0.1)).feedback()),
        ("rotate+eden:bits=2", Recipe::from(Eden::bits(2))),
        ("rotate:own,block=64+drive:bucket=64", Recipe::from(Drive::new().bucket(64))),
        ("rotate:common+eden", Recipe::from(Eden::bits(4)).rotate(Rotation::block(8192))),
        ("rotate:common+qsgd", Recipe::from(Qsgd::bits(4)).rotate(Rotation::default())),
        ("powersgd:rank=4", Recipe::from(PowerSgd::rank(4))),
        ("noef+powersgd:rank=4", Recipe::from(PowerSgd::rank(4).without_feedback())),
        ("onebit", Recipe::from(OneBit::new())),
        ("dgc:ratio=0.001,warmup=40", Recipe::from(TopK::fraction(0.001)).momentum(0.9).warm_up(40)),
        ("dgc:nesterov,ratio=0.001", Recipe::from(TopK::fraction(0.001)).momentum(0.9).nesterov()),
        ("clip=5+nesterov+dgc", Recipe::from(TopK::fraction(0.01)).momentum(0.9).nesterov().clip(5.0)),
        ("dgc:clip=0.5,nesterov+nesterov", Recipe::from(TopK::fraction(0.01)).momentum(0.9).nesterov().clip(0.5)),
        ("qsgd+clip=2", Recipe::from(Qsgd::bits(4)).clip(2.0)),
        ("peers:norm=0.5+qsgd", Recipe::from(Qsgd::bits(4)).peers_within(0.5)),
        ("none+peers:norm=3", Recipe::none().peers_within(3.0)),
        ("natural", Recipe::from(Natural::compression())),
        ("quantile", Recipe::from(Quantile::levels(64))),
        ("quantile:levels=16,bucket=1024+ef", Recipe::from(Quantile::levels(16).bucket(1024)).feedback()),
        ("grace:sketchml", Recipe::from(Quantile::levels(64)).feedback()),
        ("sign:bucket=whole", Sign::new().whole_tensor().into()),
        ("sign+noef", Sign::new().without_feedback().into()),
        ("sign:unit", Sign::unit().into()),
        ("signum+vote", Recipe::from(Sign::unit()).momentum_alone(0.9).vote()),
        ("vote+sign:unit", Recipe::from(Sign::unit()).vote()),
        ("signum:momentum=0.5,bucket=64", Recipe::from(Sign::unit().bucket(64)).momentum_alone(0.5)),
        ("momentum=0.5+onebit+noef", Recipe::from(OneBit::new()).momentum_alone(0.5)),
        ("grace:terngrad", Ternary::new().whole_tensor().clipped(2.5).into()),
        ("grace:onebit+noef", OneBit::new().whole_tensor().without_feedback().into()),
        ("randomk:0.01", RandomK::fraction(0.01).into()),
        ("randomk:k=5+noef", Recipe::from(RandomK::count(5)).without_feedback()),
        ("randomk:unbiased,0.5", RandomK::fraction(0.5).unbiased().into()),
        ("ternary", Ternary::new().into()),
        ("ternary:bucket=whole,clip=3", Ternary::new().whole_tensor().clipped(3.0).into()),
        ("ternary:stretch=1", Ternary::nearest(1.0).into()),
        ("ternary:stretch=1+noef", Ternary::nearest(1.0).without_feedback().into()),
        ("float:e4m3", Float::e4m3().into()),
        ("float", Float::e4m3().into()),
        ("float:bf16,nearest+ef", Recipe::from(Float::bf16().nearest()).feedback()),
        ("float:bucket=64,e2m1,scaled", Float::e2m1().scaled().bucket(64).into()),
        ("float:scaled,e5m2", Float::e5m2().scaled().into()),
        ("float:int8,scaled", Float::int8().scaled().into()),
        ("float:int16,bound=0.25,bucket=64+elias", Float::int16().error_bound(0.25).bucket(64).elias().into()),
        ("float:int8,bound=0.001+ef", Recipe::from(Float::int8().error_bound(0.001)).feedback()),
        ("float:scaled,bucket=8192", Float::e4m3().scaled().bucket(8192).into()),
        ("float:e2m1,scaled,bucket=64", Float::e2m1().scaled().bucket(64).into()),
        ("tree:bucket=64,stochastic+ef", Recipe::from(Tree::new().bucket(64).stochastic()).feedback()),
        ("natural:bits=4,bucket=64+ef", Recipe::from(Natural::bits(4).bucket(64)).feedback()),
        ("dgc:momentum=0.5", Recipe::from(TopK::fraction(0.01)).momentum(0.5)),
        ("onebit+finite", Recipe::from(OneBit::new().non_finite(NonFinite::Error))),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")), expected, "{text}");
    }
}

/// Where each text goes wrong, and something that the message has to say.
#[test]
fn a_bad_text_is_told_where_and_what_could_stand_there() {
    let cases = [
        ("", 0, "topk"),
        ("sgd", 0, "qsgd"),
        ("ternary+elias+base3", 14, "another kind"),
        ("qsgd+elias+delta", 11, "another kind"),
        ("qsgd+sparse+delta", 12, "another kind"),
        ("qsgd:", 5, "bits, levels, bucket"),
        ("qsgd:bits", 5, "bits=2 to 8"),
        ("qsgd:bits=four", 10, "2 to 8, or 16"),
        ("qsgd:bits=4,bits=5", 12, "second time"),
        ("qsgd:bits=4,levels=3", 5, "one of the two"),
        ("qsgd:bits=4,bucket=", 19, "a power of two"),
        ("qsgd:l2=1", 7, "takes no value"),
        ("rotate:own=1+qsgd", 10, "takes no value"),
        ("rotate:own,common+qsgd", 11, "both own and common"),
        ("rotate:blocks=64+qsgd", 7, "block, own or common"),
        ("qsgd=4", 4, "\":\""),
        ("topk", 4, "a part of all such as 0.01"),
        ("topk:0", 5, "above 0"),
        ("topk:0.1,estimate", 9, "estimate=gaussian or estimate=sidco"),
        ("topk:0.1,estimate=normal", 9, "estimate=gaussian or estimate=sidco"),
        ("topk:k=5,estimate=sidco", 9, "a part of all"),
        ("topk:persign", 4, "a part of all"),
        ("topk:k=5,persign", 9, "a part of all"),
        ("topk:0.1,persign=1", 16, "\",\", \"+\" or the end"),
        ("topk:0.1,persign,estimate=sidco", 9, "one of the two"),
        ("topk:2", 5, "k=<entries>"),
        ("topk:-0.5", 5, "above 0"),
        ("topk:nan", 5, "above 0"),
        ("topk:0.1,k=4", 9, "second time"),
        ("topk:0.1,block=4", 9, "k=<entries>"),
        ("topk:segments=1of2/x", 14, "of<elements>"),
        ("topk:0.1+topk:0.2", 9, "another kind"),
        ("qsgd+uniform", 5, "another kind"),
        ("none+ef+qsgd", 8, "another kind"),
        ("topk:0.1+powersgd", 9, "another kind"),
        ("ef:1+qsgd", 3, "beta or gamma"),
        ("qsgd+ef:beta=half", 13, "from 0 to 1"),
        ("qsgd+ef+ef21", 8, "another kind"),
        ("qsgd+ef21:1", 9, "takes no settings"),
        ("qsgd+diana=0.1", 10, "\":\""),
        ("qsgd+diana:beta=1", 11, "alpha"),
        ("topk:0.1+momentum", 9, "momentum=<factor>"),
        ("topk:0.1+momentum=much", 18, "a factor"),
        ("topk:0.1+noef+momentum=0.5", 14, "neither"),
        ("topk:0.1+momentum=0.5+noef", 22, "neither"),
        ("onebit:bits=1", 7, "bucket"),
        ("natural:levels=3", 8, "bits, bucket"),
        ("quantile:bits=6", 9, "levels or bucket"),
        ("quantile:levels=many", 16, "a power of two from 4 to 256"),
        ("tree:bits=8", 5, "bucket, stochastic or contractive"),
        ("qsgd++ef", 5, "topk"),
        ("dgc:ratio=2", 4, "above 0"),
        ("dgc:k=5", 4, "ratio, momentum"),
        ("topk:0.1,warmup", 9, "a number of steps"),
        ("dgc:nesterov=1", 12, "takes no value"),
        ("dgc:clip", 4, "clip=a norm above 0"),
        ("dgc:clip=1+clip=2", 11, "another kind"),
        ("clip=1+dgc:clip=2", 7, "dgc without clip"),
        ("topk:0.1+clip", 9, "clip=<norm>"),
        ("topk:0.1+clip=short", 14, "a norm above 0"),
        ("qsgd+peers", 10, ":norm=<norm>"),
        ("qsgd+peers=4", 10, "\":\" and norm=<norm>"),
        ("qsgd+peers:norm", 11, "norm=a norm above 0"),
        ("qsgd+peers:norm=long", 16, "a norm above 0"),
        ("qsgd+peers:bound=4", 11, "norm=<norm>"),
        ("qsgd+peers:norm=4,norm=5", 18, "a second time"),
        ("peers:norm=1+qsgd+peers:norm=1", 18, "another kind"),
        ("dgc+nesterov=2", 12, "takes no settings"),
        ("dgc+momentum=0.5", 4, "another kind"),
        ("momentum=0.5+dgc", 13, "dgc alone"),
        ("dgc+noef", 4, "neither"),
        ("noef+momentum=0.5+powersgd", 18, "neither"),
        ("signum+momentum=0.5", 7, "another kind"),
        ("momentum=0.5+signum", 13, "sign:unit, or signum alone"),
        ("grace:terngard+ef", 6, "terngrad, inceptionn, efsignsgd"),
        ("float:e4m3,e5m2", 11, "a second format"),
        ("float:int8,bound", 11, "bound=a number from"),
        ("float:e2m1,bucket=64,e2m1", 21, "a second time"),
        ("rotate:block", 7, "a power of two"),
        ("rotate:512+qsgd", 7, "block"),
        ("rotate+qsgd+rotate", 12, "another kind"),
        ("dct:block=a+qsgd", 10, "2 to 64"),
        ("dct:64+qsgd", 4, "block"),
        ("dct:block=8,tiles=1+qsgd", 17, "end of the text"),
        ("dct:tiles,tiles+qsgd", 10, "another of block or tiles"),
        ("dct+qsgd+dct", 9, "another kind"),
        ("randomk", 7, "a part of all"),
        ("randomk:0.1,k=5", 12, "unbiased"),
        ("randomk:0.1+topk:0.1", 12, "another kind"),
        ("ternary:clip", 8, "clip=a number above 0"),
        ("ternary:bits=2", 8, "clip, stretch, bucket"),
        ("signum:unit", 7, "momentum or bucket"),
    ];
    for (text, place, says) in cases {
        let error = text.parse::<Recipe>().expect_err(text);
        let Error::Recipe(RecipeError::Text { at, .. }) = &error else { panic!("{text:?}: {error:?}") };
        assert_eq!(*at, place, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_a_codec_refuses_is_told_with_its_place() {
    let cases = [
        ("ef+qsgd:bits=9", 3, "2 to 8, or 16,"),
        ("qsgd:bucket=33", 0, "a power of two"),
        ("qsgd:levels=0", 0, "1 to"),
        ("uniform:bits=16", 0, "1 to 8"),
        ("finite+powersgd:rank=33", 7, "1 to 32"),
        ("powersgd:iterations=0", 0, "1 to 16"),
        ("topk:above=-1", 0, "0 or more"),
        ("topk:0.1+qsgd:bits=9", 9, "2 to 8"),
        ("topk:above=-1+qsgd:bits=4", 0, "0 or more"),
        ("topk:above=inf+ef", 0, "keeps no entry"),
        ("topk:k=0+ef", 0, "keeps no entry"),
        ("topk:0.1,estimate=sidco+ef+gtopk", 27, "leave out estimate, or gtopk"),
        ("topk:0.1,persign+ef+gtopk", 20, "leave out persign, or gtopk"),
        ("topk:segments=5of3", 0, "5 entries"),
        ("qsgd+momentum=1", 5, "less than 1"),
        ("topk:0.1+ef+nesterov", 12, "add momentum=<factor>"),
        ("topk:0.1+ef+unmasked", 12, "add topk and momentum=<factor>"),
        ("qsgd+momentum=0.5+unmasked", 18, "add topk and momentum=<factor>"),
        ("none+momentum=0.5+unmasked", 18, "leave out ef"),
        ("qsgd+clip=0", 5, "clip must be above 0; got 0"),
        ("qsgd+clip=inf", 5, "clip must be above 0; got inf"),
        ("dgc:clip=-1", 0, "clip must be above 0; got -1"),
        ("none+clip=1", 5, "leave out clip, or name a codec"),
        ("qsgd+peers:norm=0", 5, "peers:norm must be above 0; got 0"),
        ("none+peers:norm=nan", 5, "peers:norm must be above 0; got NaN"),
        ("powersgd+peers:norm=1", 9, "leave out powersgd"),
        ("qsgd+twophase+peers:norm=1", 14, "twophase"),
        ("sign+vote", 5, "use sign:unit or signum"),
        ("qsgd+vote", 5, "use sign:unit or signum"),
        ("float:f16+ef", 10, "use scaled()"),
        ("sign:unit+ef", 10, "Sign::new(), whose scale is their mean"),
        ("drive+ef", 6, "Sign::new(), the same signs with their mean"),
        ("eden+ef", 5, "Quantile::levels(16)"),
        ("eden:bits=5", 0, "1 to 4"),
        ("eden:bucket=whole", 0, "buckets of a power of two from 32 to 8192"),
        ("eden:bucket=16384", 0, "bucket must be a power of two from 32 to 8192"),
        ("drive:bucket=whole", 0, "buckets of a power of two from 32 to 8192"),
        ("rotate:block=1024+eden", 18, "set the bucket to the same number"),
        ("drive:bucket=64+rotate:block=32", 16, "set the bucket to the same number"),
        ("topk:0.1+eden", 9, "leave out topk, powersgd and dct"),
        ("powersgd+drive", 9, "leave out topk, powersgd and dct"),
        ("dct+eden", 4, "leave out topk, powersgd and dct"),
        ("eden+ef21", 5, "leave out ef21, diana"),
        ("drive+diana", 6, "leave out ef21, diana"),
        ("drive:bucket=32+ef:beta=0.1", 16, "leave out ef21, diana, beta and gamma"),
        ("rotate+eden+ef", 12, "Quantile::levels(16)"),
        ("eden+twophase", 5, "leave out vote, rotate, eden and drive"),
        ("rotate", 0, "add qsgd"),
        ("rotate+topk:0.1", 7, "add qsgd"),
        ("rotate+sign", 7, "say noef"),
        ("rotate+qsgd+ef21", 12, "say noef"),
        ("rotate+sign:unit+vote", 17, "leave out rotate"),
        ("rotate:block=33+qsgd", 16, "32 to 8192"),
        ("dct", 0, "add topk or qsgd"),
        ("dct+powersgd", 4, "leave out powersgd"),
        ("dct:block=5+qsgd", 12, "2 to 64"),
        ("randomk:1.5", 0, "above 0 and up to 1"),
        ("randomk:k=0", 0, "1 or more"),
        ("randomk:0.1+momentum=0.9", 12, "leave out momentum"),
        ("randomk:0.1,unbiased+ef", 21, "say noef"),
        ("ternary:clip=2.5+ef", 17, "leave out the clip"),
        ("ternary:clip=1e-50", 0, "above 0 and up to 1000"),
        ("ternary:stretch=1.9999999999", 0, "1 to less than 2"),
        ("ternary:clip=0", 0, "above 0 and up to 1000"),
        ("ternary:stretch=2", 0, "1 to less than 2"),
        ("ternary:clip=1,stretch=1", 0, "left out"),
        ("natural:bits=9", 0, "2 to 8"),
        ("quantile:levels=60", 0, "a power of two from 4 to 256"),
        ("quantile:levels=512", 0, "a power of two from 4 to 256"),
        ("quantile:bucket=8192", 0, "from 256 to 4096"),
        ("quantile:bucket=whole", 0, "the whole tensor"),
        ("f16", 0, "add topk"),
        ("none+ef", 5, "leave out ef"),
        ("topk:k=4,warmup=9", 0, "a part of the entries"),
        ("dgc:momentum=1", 0, "less than 1"),
        ("uniform+elias", 8, "leave out elias"),
        ("uniform+delta", 8, "leave out elias, delta and sparse"),
        ("onebit+sparse", 7, "leave out elias, delta and sparse"),
        ("qsgd:bits=4+base3", 12, "add ternary or qsgd:bits=2, or leave out base3"),
    ];
    for (text, place, says) in cases {
        let error = text.parse::<Recipe>().expect_err(text);
        let Error::Recipe(RecipeError::Setting { at, .. }) = &error else { panic!("{text:?}: {error:?}") };
        assert_eq!(*at, place, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// What encodes the values of a selection packs them too: the recipe says no other thing than the codec.
#[test]
fn a_packed_quantizer_of_values_is_the_stages_of_a_text() {
    let codec = TopK::fraction(0.1).then(Qsgd::bits(4).bucket(32).l2().elias());
    let recipe: Recipe = "elias+topk:0.1+qsgd:bits=4,bucket=32,l2".parse().expect("stages in any order");
    assert_eq!(recipe, Recipe::from(codec));
    assert_eq!(recipe.to_string(), "topk:0.1+qsgd:bits=4,bucket=32,l2+elias");
}

#[test]
fn a_quantizer_brings_its_own_packing() {
    let packed = Recipe::from(Qsgd::bits(4).elias());
    assert_eq!(packed.clone().quantize(Qsgd::bits(4)), Recipe::from(Qsgd::bits(4)));
    assert_eq!(packed.clone().quantize(Uniform::bits(4)), Recipe::from(Uniform::bits(4)));
    assert_eq!(packed.clone().quantize(Qsgd::bits(8).elias()), Recipe::from(Qsgd::bits(8).elias()));
    assert_eq!(packed.quantize(Qsgd::bits(8)).entropy(Entropy::Elias), Recipe::from(Qsgd::bits(8).elias()));
}

#[test]
fn stages_that_do_not_go_together_are_refused() {
    let stages = [
        "topk:0.1+sign:unit".parse::<Recipe>().expect("signs of the largest").vote(),
        Recipe::none().quantize(Dtype::F16),
        Recipe::from(PowerSgd::rank(2)).quantize(Dtype::F16),
        Recipe::none().feedback(),
        Recipe::none().momentum(0.5),
        Recipe::from(Uniform::bits(4)).entropy(Entropy::Elias),
        Recipe::none().entropy(Entropy::Elias),
        Recipe::from(TopK::fraction(0.1).then(Uniform::bits(4))).entropy(Entropy::Elias),
        Recipe::from(TopK::fraction(0.1)).entropy(Entropy::Elias),
    ];
    for recipe in stages {
        let error = recipe.check().expect_err("it makes no sense");
        assert!(matches!(error, Error::Recipe(RecipeError::Stages { .. })), "{error:?}");
    }
    for factor in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
        let error = Recipe::from(Qsgd::bits(4)).momentum(factor).check().expect_err("it grows for ever");
        assert!(matches!(error, Error::Recipe(RecipeError::Momentum { .. })), "{error:?}");
    }
    for nothing in
        [TopK::count(0), TopK::fraction(0.0), TopK::blocks(4, 0), TopK::segments(&[Segment { elements: 9, k: 0 }])]
    {
        let error = Recipe::from(nothing).check().expect_err("it sends nothing");
        assert!(matches!(error, Error::Recipe(RecipeError::Nothing { .. })), "{error:?}");
    }
    let error = Policy::new("qsgd+ef")
        .map(Policy::all_reduce_only)
        .and_then(|policy| gradwire::Compressor::with_policy(&policy, &[Tensor::new("", [100, 100])], 1).map(drop));
    let error = error.expect_err("codes cannot be summed").to_string();
    assert!(error.contains("none or powersgd"), "{error}");
    for (text, says) in [("none+finite", "leave out finite"), ("none+peers:norm=1", "leave out peers")] {
        let policy = Policy::new(text).expect("valid").all_reduce_only();
        let refused = gradwire::Compressor::with_policy(&policy, &[Tensor::new("", [9])], 1).map(drop);
        assert!(refused.expect_err("it needs a gather").to_string().contains(says));
    }
    let diverges = gradwire::Compressor::new("qsgd:bits=2,bucket=8192+ef", [[100, 100]], 1).map(drop);
    let error = diverges.expect_err("omega is above 1").to_string();
    assert!(error.contains("contractive()"), "{error}");
}

#[test]
fn a_text_of_any_length_is_refused_in_a_short_error() {
    for text in ["+ef".repeat(1 << 20), "x".repeat(1025), "qsgd:".to_owned() + &"bits=4,".repeat(200)] {
        let error = text.parse::<Recipe>().expect_err("too long").to_string();
        assert_eq!(error, format!("a recipe has at most 1024 bytes, and this text has {}; shorten it", text.len()));
    }
    assert!("x".repeat(1024).parse::<Recipe>().expect_err("no recipe").to_string().starts_with("at byte 0"));
}

/// A residual that comes back times beta stays bounded if beta sqrt(omega) < 1. For 4 bits in buckets of 256 omega is
/// 256 / (4 * 7^2) = 1.306, for 2 bits in a selection's buckets of 64 it is sqrt(64) / 1 = 8.
#[test]
fn feedback_is_refused_only_if_beta_lets_it_grow() {
    let make = |text: &str| gradwire::Compressor::new(text, [[100, 100]], 1).map(drop).map_err(|e| e.to_string());
    for (text, most) in [
        ("qsgd:bits=4,bucket=256+ef:beta=", "0.87"),
        ("topk:0.5+qsgd:bits=2,bucket=64+ef:beta=", "0.35"),
        ("qsgd:bits=4,bucket=256+ef:gamma=0.5,beta=", "0.87"),
    ] {
        for beta in ["0", "0.1", most] {
            assert_eq!(make(&format!("{text}{beta}")), Ok(()), "{text}{beta}");
        }
        for beta in ["0.88", "0.95", "1"] {
            let error = make(&format!("{text}{beta}")).expect_err("it grows");
            assert!(error.contains("contractive()"), "{error}");
        }
    }
    let error = make("qsgd:bits=4,bucket=256+ef:beta=0.9").expect_err("it grows");
    assert!(error.ends_with("ef:beta=0.87 at most"), "{error}");
    // Signs of 1 have no bound at all.
    assert!(make("sign:unit+ef:beta=0.5").is_err());
    assert_eq!(make("sign:unit+ef:beta=0"), Ok(()));
}

/// Of a constant gradient g the residual's root mean square is at most sqrt(omega) |g| / (1 - beta sqrt(omega)): by
/// |e'| <= sqrt(omega) (beta |e| + |g|). With beta 0.8 that is 13.3 |g|.
#[test]
fn a_fading_residual_stays_bounded() {
    let x = cases::normal(10_000, 3);
    let mut compressor = gradwire::Compressor::new("qsgd:bits=4,bucket=256+ef:beta=0.8", [[100, 100]], 1).unwrap();
    let mut group = gradwire_collectives::Threads::group(1).expect("one").remove(0);
    let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let omega: f64 = 256.0 / 196.0;
    let most = omega.sqrt() * norm(&x) / (1.0 - 0.8 * omega.sqrt());
    for step in 0..300 {
        let mut gradient = x.clone();
        compressor.exchange(&gradwire::Device::cpu(), &mut group, &mut gradient).unwrap();
        let residual = norm(&compressor.residual().unwrap());
        assert!(residual > 0.0 && residual <= most, "step {step}: {residual} of {most}");
    }
}

/// Normal, of heavy tails, one large element, all equal, and one bucket's half at the midpoints of levels.
fn gradients(n: usize) -> Vec<Vec<f32>> {
    let mut random = Random(5);
    let heavy = (0..n).map(|_| (random.normal() / random.normal().abs().max(1e-3)) as f32).collect();
    let one = (0..n).map(|i| if i == n / 2 { 1.0 } else { 1e-3 }).collect();
    let halves = (0..n).map(|i| if i % 32 == 0 { 1.0 } else { 0.5 / 7.0 }).collect();
    vec![cases::normal(n, 3), heavy, one, vec![-0.25; n], halves]
}

/// Bounds, for every recipe that quantizes or selects, on five gradients of two lengths.
///
/// A recipe without random draws must keep its bound each time. For others the mean over R runs is compared. One run's
/// error is at most M |x|^2, M = 4 omega of the quantizer (each element errs by less than a level, the bound on the
/// variance takes a quarter of it squared), so that by Hoeffding's inequality the mean passes the bound by M
/// sqrt(ln(1e12) / (2 R)) with probability 1e-12 at most. Binary32's own rounding is below 1e-5 of the bound.
#[test]
fn bounds_hold_as_they_are_computed_from_the_stages() {
    const RUNS: u64 = 256;
    let device = gradwire::Device::cpu();
    let mut checked = 0;
    for n in [1000, 3001] {
        for recipe in recipes().iter().filter(|recipe| !recipe.to_string().contains("powersgd")) {
            let Ok(promise) = recipe.promise(n) else {
                assert!(recipe.to_string().contains("segments") && n != 1000, "{recipe} is refused at {n}");
                continue;
            };
            for x in gradients(n) {
                let runs = if promise.deterministic { 1 } else { RUNS };
                let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
                let (mut error, mut sum) = (0.0, vec![0.0f64; n]);
                for run in 0..runs {
                    let decoded = decoded(&device, recipe, &x, run);
                    error += x.iter().zip(&decoded).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum::<f64>();
                    sum.iter_mut().zip(&decoded).for_each(|(sum, y)| *sum += f64::from(*y));
                }
                let mean = error / runs as f64 / energy;
                let most = if promise.deterministic { 0.0 } else { 4.0 * promise.omega.unwrap_or(1.0).max(0.25) };
                let slack = most * (1e12f64.ln() / (2.0 * runs as f64)).sqrt();
                for bound in [promise.omega, promise.delta.map(|delta| 1.0 - delta)].into_iter().flatten() {
                    assert!(mean <= bound * (1.0 + 1e-5) + slack + 1e-9, "{recipe}, {n}: {mean} is above {bound}");
                    checked += 1;
                }
                if promise.unbiased {
                    // Hoeffding's for each element: one run errs by the whole range of values at most.
                    let range = f64::from(x.iter().fold(0.0f32, |most, v| most.max(v.abs()))) * 2.0;
                    let norm = energy.sqrt().max(range);
                    let slack = norm * ((2.0 * n as f64 * 1e12).ln() / (2.0 * runs as f64)).sqrt();
                    let worst = x.iter().zip(&sum).map(|(x, sum)| (sum / runs as f64 - f64::from(*x)).abs());
                    assert!(worst.fold(0.0, f64::max) <= slack, "{recipe} is biased");
                }
            }
        }
    }
    assert!(checked > 300, "{checked} bounds");
}

/// The gradient that is decoded, without memory.
fn decoded(device: &gradwire::Device, recipe: &Recipe, x: &[f32], run: u64) -> Vec<f32> {
    let mut compressor = compressor(recipe, x.len(), run);
    let mut gradient = x.to_vec();
    let mut alone = gradwire_collectives::Threads::group(1).expect("one rank").remove(0);
    compressor.exchange(device, &mut alone, &mut gradient).unwrap_or_else(|error| panic!("{recipe}: {error}"));
    gradient
}

fn compressor(recipe: &Recipe, n: usize, run: u64) -> gradwire::Compressor {
    let alone = recipe.clone().without_feedback();
    let policy = Policy::new(alone).expect("checked").small(0);
    gradwire::Compressor::with_policy(&policy, &[Tensor::new("", [n as u64])], run).expect("checked")
}

/// A quantizer's promise is that of the tests' own table; a selection's and a composition's follow from it.
#[test]
fn bounds_of_compositions() {
    let promise = |text: &str, n| text.parse::<Recipe>().expect(text).promise(n).expect(text);
    let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-12);
    // sqrt(32)/7 is above 32/(4 * 49).
    assert!(close(promise("qsgd:bits=4,bucket=32", 1000).omega, 32.0 / 196.0));
    assert!(promise("qsgd:bits=4,bucket=32", 1000).unbiased);
    assert!(close(promise("topk:0.1", 1000).delta, 0.1));
    assert!(close(promise("topk:0.1+qsgd:bits=4,bucket=32", 1000).delta, 0.1 * (1.0 - 32.0 / 196.0)));
    assert!(close(promise("topk:0.1+qsgd:bits=2,bucket=32,contractive", 1000).delta, 0.1 / (1.0 + 32f64.sqrt())));
    assert!(promise("topk:0.1+qsgd:bits=2,bucket=32", 1000).delta.is_none(), "omega is above 1");
    assert!(close(promise("topk:k=4,block=64", 1000).delta, 4.0 / 64.0));
    assert!(promise("topk:above=0.5", 1000).delta.is_none());
    assert!(close(promise("onebit", 1000).delta, 1.0 / 64.0));
    assert!(!promise("topk:0.5+f16", 1000).unbiased);
    let whole = promise("topk:1", 10);
    assert!(whole.unbiased && whole.delta == Some(1.0) && !whole.linear);
    for (text, linear) in [
        ("none", true),
        ("powersgd", true),
        ("powersgd+qsgd", false),
        ("qsgd", false),
        ("topk:0.1", false),
        ("onebit", false),
    ] {
        assert_eq!(promise(text, 100).linear, linear, "{text}");
        assert_eq!(text.parse::<Recipe>().expect(text).is_linear(), linear, "{text}");
    }
}

#[test]
fn a_codec_in_a_recipe_keeps_its_settings_and_hands_over_its_policy() {
    let recipe = Recipe::from(TopK::count(5).then(Qsgd::bits(8).non_finite(NonFinite::Error)));
    assert_eq!(recipe.to_string(), "topk:k=5+qsgd:bits=8+finite");
    assert_eq!(Recipe::from(TopK::count(5)).quantize(Quantize::Exact).to_string(), "topk:k=5");
    assert_eq!(recipe.memory(), gradwire::Memory::default());
    let plain = Recipe::from(TopK::fraction(0.1).values(Dtype::F32));
    assert_eq!(plain, Recipe::from(TopK::fraction(0.1)), "f32 is what values are");
    assert_eq!(Recipe::try_from(String::from("onebit")).expect("a text"), Recipe::from(OneBit::new()));
}

#[test]
fn serde_writes_a_recipe_as_its_text() {
    for recipe in recipes() {
        let json = serde_json::to_string(&recipe).expect("a text");
        assert_eq!(json, format!("\"{recipe}\""));
        assert_eq!(serde_json::from_str::<Recipe>(&json).expect("its own"), recipe);
    }
    let error = serde_json::from_str::<Recipe>("\"qsgd:bit=4\"").expect_err("no such setting").to_string();
    assert!(error.contains("at byte 5"), "{error}");
}
