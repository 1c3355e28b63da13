//! The certificates of a bed's cluster: one authority, and a pair for each who needs one.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

fn subject(user: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// A [`Pair`] in two files.
#[derive(Clone, Debug)]
pub struct PairFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// A new authority, its files in `folder`.
    pub(crate) fn create(folder: PathBuf) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "podwright test bed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let pair = Pair { certificate: issuer.pem(), key: issuer.key().serialize_pem() };
        pair.save(&folder, "ca")?;
        Ok(Self { issuer, folder })
    }

    /// The authority's own certificate and key, as files.
    pub fn files(&self) -> PairFiles {
        PairFiles::named(&self.folder, "ca")
    }

    /// The authority's certificate, PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A client that the API server knows as `user`, a member of `groups`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        self.sign(subject(user, groups), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The same, but it has expired long ago.
    pub fn expired_client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        let mut params = subject(user, groups);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A server reached under these names and addresses.
    pub fn server(&self, user: &str, names: &[&str], addresses: &[IpAddr]) -> Result<Pair> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        let addresses = addresses.iter().map(|&address| SanType::IpAddress(address));
        params.subject_alt_names.extend(addresses);
        params.distinguished_name.push(DnType::CommonName, user);
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Writes `pair` beside the authority's own files.
    pub fn save(&self, name: &str, pair: &Pair) -> Result<PairFiles> {
        pair.save(&self.folder, name)
    }

    /// A key of its own, for signing service account tokens: `NAME.key`, and `NAME.pub` for whoever
    /// checks them.
    pub(crate) fn signing_key(&self, name: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem())?;
        fs::write(self.folder.join(format!("{name}.pub")), key.public_key_pem())?;
        Ok(())
    }
}

impl Pair {
    fn save(&self, folder: &Path, name: &str) -> Result<PairFiles> {
        let files = PairFiles::named(folder, name);
        fs::write(&files.certificate, &self.certificate)?;
        fs::write(&files.key, &self.key)?;
        Ok(files)
    }
}

impl PairFiles {
    fn named(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }
}
