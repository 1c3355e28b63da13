#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use proptest::prelude::*;

use super::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap()
}

#[test]
fn canonical_forms_are_upstreams() {
    // given: the text, and upstream's String() of it after arithmetic
    for (written, canonical) in [
        ("0", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        ("0e5", "0"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("1.500", "1500m"),
        ("+5", "5"),
        ("0005", "5"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1500k", "1500k"),
        ("1E", "1E"),
        ("1Ki", "1Ki"),
        ("1.5Ki", "1536"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("-1.5Gi", "-1536Mi"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("1.0000000001Gi", "1073741824107374183n"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e+3", "1e3"),
        ("1e-3", "1e-3"),
        ("12e-1", "1200e-3"),
        ("1e1", "10"),
        ("1000e3", "1e6"),
        ("1.5e3", "1500"),
        ("1e20", "100e18"),
        ("0.1n", "1n"),
        ("1e-10", "1e-9"),
        ("0.00000000001Ki", "11n"),
        ("1.0000000001", "1000000001n"),
        ("100Ei", "9223372036854775807"),
        ("123456789012345678901234567", "123456789012345678901234567"),
    ] {
        assert_eq!(q(written).to_string(), canonical, "{written}");
    }
}

#[test]
fn number_grows_beyond_the_largest_suffix() {
    // Upstream prints "1" here.
    assert_eq!(q("1000E").to_string(), "1000E");
    assert_eq!(q("1000Ei").to_string(), "9223372036854775807");
}

#[test]
fn invalid_text_is_refused_with_an_example() {
    for text in [
        "",
        "+",
        "-",
        ".",
        "-.",
        "1 ",
        " 1",
        "1i",
        "1mi",
        "1KI",
        "1e",
        "1ee3",
        "1e3.5",
        "1.2.3",
        "1E5Ki",
        "Ki",
        "1e99999999999999999999",
        "--1",
        "1_000",
        "1,5",
        "٣",
        "0x10",
        "NaN",
        "1e+",
    ] {
        let error = text.parse::<Quantity>().expect_err(text);
        assert!(error.to_string().contains("use a number such as"), "{text}: {error}");
    }
}

#[test]
fn values_round_away_from_zero() {
    for (written, value, milli) in [
        ("0", 0, 0),
        ("1n", 1, 1),
        ("-1n", -1, -1),
        ("0.5", 1, 500),
        ("-0.5", -1, -500),
        ("1.0005", 2, 1001),
        ("1Gi", 1 << 30, 1000 << 30),
        ("250m", 1, 250),
        ("1e20", i64::MAX, i64::MAX),
        ("-1e20", i64::MIN, i64::MIN),
    ] {
        assert_eq!((q(written).value(), q(written).milli_value()), (value, milli), "{written}");
    }
    assert_eq!(q("-5").unsigned_value(), 0);
}

#[test]
fn huge_amounts_saturate() {
    let most = q("1e90");
    assert_eq!(most + most, most);
    assert_eq!(most, q(&format!("1{}", "0".repeat(5000))));
    assert_eq!(q("1e-90"), q("1n"));
    assert_eq!((q("-1e90") - most - most).value(), i64::MIN);
    assert_eq!(q(&format!("0.{}1Ei", "0".repeat(5000))), q("1n"));
}

#[test]
fn quantities_are_compared_by_amount() {
    assert_eq!(q("1000m"), q("1"));
    assert_eq!(q("1Ki"), q("1024"));
    assert!(q("1G") < q("1Gi"));
    assert!(q("-1") < q("1n"));
}

#[test]
fn sum_has_the_format_of_its_first_non_zero_operand() {
    assert_eq!((q("1Gi") + q("1048576")).to_string(), "1025Mi");
    assert_eq!((q("0") + q("1Gi")).to_string(), "1Gi");
    assert_eq!((q("0") - q("1Gi")).to_string(), "-1Gi");
    assert_eq!(["100m", "900m"].map(q).into_iter().sum::<Quantity>().to_string(), "1");
}

#[test]
fn stored_text_is_kept_if_upstream_accepts_it_as_canonical() {
    for (written, stored) in [
        ("0", "0"),
        ("00", "0"),
        ("1.500", "1.500"),
        ("1.5", "1500m"),
        ("+5", "+5"),
        ("0005", "0005"),
        ("5.", "5."),
        ("0.500", "500m"),
        ("1E3", "1E3"),
        ("1e1", "10"),
        ("1000", "1k"),
        ("100", "100"),
        ("1024Mi", "1Gi"),
        ("+1Ki", "+1Ki"),
        ("8Ki", "8Ki"),
        ("1.5Gi", "1536Mi"),
        ("1.Ki", "1.Ki"),
        ("1.0Ki", "1Ki"),
    ] {
        assert_eq!(as_stored(written).unwrap(), stored, "{written}");
    }
    as_stored("much").expect_err("not a quantity");
}

#[test]
fn api_quantities_convert_both_ways() {
    assert_eq!(Quantity::try_from(&ApiQuantity(" 1.5Gi ".into())).unwrap(), q("1536Mi"));
    assert_eq!(ApiQuantity::from(Quantity::from_bytes(1 << 20)).0, "1Mi");
    assert_eq!(ApiQuantity::from(Quantity::from_milli(1500)).0, "1500m");
    assert_eq!(Quantity::new(-3, Format::DecimalExponent).to_string(), "-3");
}

#[test]
fn quantity_serialises_as_its_text() {
    assert_eq!(serde_json::to_string(&q("0.5")).unwrap(), r#""500m""#);
    assert_eq!(serde_json::from_str::<Quantity>(r#""1Gi""#).unwrap(), q("1Gi"));
    assert!(serde_json::from_str::<Quantity>(r#""1gi""#).is_err());
}

fn any_format() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::DecimalSi), Just(Format::BinarySi), Just(Format::DecimalExponent)]
}

proptest! {
    #[test]
    fn printed_quantity_parses_to_the_same_amount(
        // Binary text is capped at 2^63, so stay below it.
        nanos in -9_000_000_000_000_000_000_000_000_000i128..9_000_000_000_000_000_000_000_000_000,
        shift in 0u32..90,
        format in any_format(),
    ) {
        let quantity = Quantity { nanos: nanos >> shift, format };
        let again = q(&quantity.to_string());
        prop_assert_eq!(again, quantity);
        prop_assert_eq!(again.to_string(), quantity.to_string());
    }

    #[test]
    fn decimal_with_nine_places_is_exact(whole in any::<i32>(), nanos in 0u32..1_000_000_000) {
        let sign = if whole < 0 { -1 } else { 1 };
        let expected = i128::from(whole) * NANOS_PER_UNIT + i128::from(nanos) * sign;
        prop_assert_eq!(q(&format!("{whole}.{nanos:09}")).nanos, expected);
    }

    #[test]
    fn binary_fraction_rounds_up_by_less_than_a_nano(
        fraction in "[0-9]{1,60}",
        (suffix, shift) in prop_oneof![Just(("Ki", 10u32)), Just(("Ei", 60))],
    ) {
        // given: the same product in floating point, which is right to about 2^-52
        let exact = format!("0.{fraction}").parse::<f64>().unwrap() * 2f64.powi(shift as i32) * 1e9;
        let got = q(&format!("0.{fraction}{suffix}")).nanos as f64;
        prop_assert!((got - exact).abs() <= 1.0 + exact * 1e-15, "{} {}", got, exact);
    }

    #[test]
    fn subtracting_undoes_adding(a in any::<i64>(), b in any::<i64>()) {
        let (a, b) = (Quantity::from_milli(a), Quantity::from_milli(b));
        prop_assert_eq!(a + b - b, a);
        prop_assert_eq!((a + b).cmp(&b), a.cmp(&Quantity::ZERO));
    }

    #[test]
    fn number_like_text_does_not_panic(text in "[-+]?[0-9.]{0,40}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,20}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.value(), quantity.milli_value());
            prop_assert_eq!(q(&quantity.to_string()), quantity);
            let stored = as_stored(&text).unwrap();
            prop_assert_eq!(q(&stored), quantity);
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC*") {
        let _ = text.parse::<Quantity>();
    }
}
