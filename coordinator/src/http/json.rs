//! Bodies, paths and queries whose errors are problems too.

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::JsonRejection},
    http::{StatusCode, request::Parts},
};
use serde::de::DeserializeOwned;

use super::problem::Fault;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        match axum::Json::<T>::from_request(request, state).await {
            Ok(axum::Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(rejected(&rejection)),
        }
    }
}

fn rejected(rejection: &JsonRejection) -> Fault {
    let (status, title) = (rejection.status(), rejection.body_text());
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(&title),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            Fault::new(status, "not_json", title).hint("send JSON with content-type: application/json")
        }
        _ => Fault::new(status, "bad_request", title),
    }
}

/// The refusal of a body over the limit.
pub(crate) fn too_large(title: &str) -> Fault {
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", title).hint("at most 4 MiB")
}

/// An id in a path. One that is not wellformed is as unknown as one that does not exist.
pub(crate) struct Id<T>(pub(crate) T);

impl<S: Send + Sync, T: std::str::FromStr + Send> FromRequestParts<S> for Id<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Fault::bad_request(rejection.body_text()))?;
        text.parse()
            .map(Self)
            .map_err(|_| Fault::unknown_id("such id", &text.chars().take(80).collect::<String>()))
    }
}

/// What stands behind the `?`.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Fault::bad_request(rejection.body_text())),
        }
    }
}
