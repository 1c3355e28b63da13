//! Images: present, absent, pulled, refused.

use tokio::time::Instant;
use tonic::Code;

use super::*;

fn spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: image.into(), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn image_is_present_after_pull_and_absent_after_removal() {
    let Bed { fake, client } = bed();
    let name = "registry.test/app:2";
    fake.images().offer(FakeImage::new(name).size(77).user(1000), Pull::takes(seconds(8)));
    assert_eq!(client.image_status(name).await.unwrap(), None);
    let began = Instant::now();
    let pulled = client.pull_image(spec(name), None, None).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 8);
    let image = client.image_status(name).await.unwrap().unwrap();
    assert_eq!(
        (image.id.as_str(), image.size, image.uid),
        (pulled.image_ref.as_str(), 77, Some(1000))
    );
    assert_eq!(image.tags, [name]);
    assert_eq!(client.list_images().await.unwrap().len(), 2);
    let used = client.image_fs_info().await.unwrap().image_filesystems[0].used_bytes.unwrap();
    assert_eq!(used.value, 77 + (1 << 20));
    client.remove_image(&image.id).await.unwrap();
    client.remove_image(&image.id).await.unwrap();
    assert_eq!(client.image_status(name).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn pull_fails_with_the_registrys_error() {
    let Bed { fake, client } = bed();
    let down = Pull::fails(seconds(1), Code::Unavailable, "registry is down");
    fake.images().offer("registry.test/down:1", down);
    fake.images().offer("registry.test/private:1", Pull::takes(seconds(1)).needs("me", "secret"));
    let auth = |password: &str| {
        Some(cri::AuthConfig {
            username: "me".into(),
            password: password.into(),
            ..Default::default()
        })
    };
    for (case, image, auth, want) in [
        ("not in the registry", "registry.test/none:1", None, Some("none:1: not found")),
        ("registry down", "registry.test/down:1", None, Some("registry is down")),
        ("no credentials", "registry.test/private:1", None, Some("authorization failed")),
        ("wrong", "registry.test/private:1", auth("guess"), Some("authorization failed")),
        ("right", "registry.test/private:1", auth("secret"), None),
    ] {
        let result = client.pull_image(spec(image), auth, None).await;
        let words = result.err().map(|error| error.message);
        match (words, want) {
            (None, None) => {}
            (Some(words), Some(want)) => assert!(words.ends_with(want), "{case}: {words}"),
            (words, want) => panic!("{case}: {words:?}, not {want:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn abandoned_pull_ends() {
    let Bed { fake, client } = bed();
    fake.images().offer("registry.test/big:1", Pull::takes(seconds(100)));
    fake.images().offer("registry.test/stuck:1", Pull::stalls());
    for (image, progress) in [("registry.test/big:1", 0.25), ("registry.test/stuck:1", 0.5)] {
        let pull = client.pull_image(spec(image), None, None);
        let watch = async {
            tokio::time::sleep(seconds(25)).await;
            fake.images().pulls()
        };
        let pulls = tokio::select! {
            ended = pull => panic!("{ended:?}"),
            pulls = watch => pulls,
        };
        assert_eq!(pulls.len(), 1, "{pulls:?}");
        assert!((pulls[0].progress - progress).abs() < 0.01, "{pulls:?}");
        tokio::time::sleep(seconds(1)).await;
        assert_eq!(fake.images().pulls(), []);
        assert_eq!(client.image_status(image).await.unwrap(), None);
    }
}
