//! Certificates of a bed's cluster: one CA, and one pair for each component.

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
    directory: PathBuf,
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
    /// A new CA with its files in `directory`.
    pub(crate) fn create(directory: PathBuf) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "podwright test bed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::create_dir_all(&directory)
            .with_context(|| format!("making {}", directory.display()))?;
        let pair = Pair { certificate: issuer.pem(), key: issuer.key().serialize_pem() };
        pair.save(&directory, "ca")?;
        Ok(Self { issuer, directory })
    }

    /// The files of the CA's own certificate and key.
    pub fn files(&self) -> PairFiles {
        PairFiles::named(&self.directory, "ca")
    }

    /// The CA's certificate, PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A client certificate of `user` in `groups`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        self.sign(subject(user, groups), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Like [`Self::client`], but expired.
    pub fn expired_client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        let mut params = subject(user, groups);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A server certificate for these names and addresses.
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

    /// Writes `pair` beside the CA's own files.
    pub fn save(&self, name: &str, pair: &Pair) -> Result<PairFiles> {
        pair.save(&self.directory, name)
    }

    /// A key for signing service account tokens: `NAME.key`, and `NAME.pub` for verification.
    pub(crate) fn signing_key(&self, name: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        fs::write(self.directory.join(format!("{name}.key")), key.serialize_pem())?;
        fs::write(self.directory.join(format!("{name}.pub")), key.public_key_pem())?;
        Ok(())
    }
}

impl Pair {
    fn save(&self, directory: &Path, name: &str) -> Result<PairFiles> {
        let files = PairFiles::named(directory, name);
        fs::write(&files.certificate, &self.certificate)?;
        fs::write(&files.key, &self.key)?;
        Ok(files)
    }
}

impl PairFiles {
    fn named(directory: &Path, name: &str) -> Self {
        Self {
            certificate: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        }
    }
}
