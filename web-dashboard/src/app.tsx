import { Suspense, useEffect, useState } from "react";
import { Link, Redirect, Route, Switch } from "wouter";
import { errorText, post } from "./api/client";
import { Home } from "./pages/home";
import { Inbox } from "./pages/inbox";
import { Login } from "./pages/login";
import { NewTask } from "./pages/new-task";
import { Session } from "./pages/session";
import { Worker } from "./pages/worker";
import { begin, useStore } from "./store/store";
import { Skeleton } from "./ui/parts";
import { PageTitle, Shell } from "./ui/shell";

let exchanged: Promise<string | null> | null = null;

function exchange(code: string): Promise<string | null> {
  exchanged ??= post<unknown>("/login", { code }).then(
    () => null,
    (error: unknown) => errorText(error),
  );
  return exchanged;
}

export function App({ code }: { code: string | null }) {
  const [ready, setReady] = useState(code === null);
  const [failed, setFailed] = useState<string | null>(null);
  const unauthorized = useStore((state) => state.connection.status === "unauthorized", "now");

  useEffect(() => {
    if (code === null) {
      begin();
      return;
    }
    // A code that is used up harms nobody who is signed in already.
    exchange(code).then((error) => {
      setFailed(error);
      setReady(true);
      begin();
    });
  }, [code]);

  if (unauthorized) return <Login failed={failed} />;
  if (!ready) {
    return (
      <main className="login">
        <p className="text2">signing in…</p>
      </main>
    );
  }
  return (
    <Shell>
      <Suspense fallback={<Skeleton />}>
        <Switch>
          <Route path="/">
            <Home />
          </Route>
          <Route path="/inbox">
            <Inbox />
          </Route>
          <Route path="/inbox/:request">{({ request }) => <Inbox request={request} />}</Route>
          <Route path="/new">
            <NewTask />
          </Route>
          <Route path="/s/:id/:tab?">
            {({ id, tab = "conversation" }) =>
              tab === "conversation" || tab === "queue" || tab === "workers" ? (
                <Session key={id} id={id} tab={tab} />
              ) : (
                <Redirect to={`/s/${id}`} replace />
              )
            }
          </Route>
          <Route path="/w/:id/:tab?">
            {({ id, tab = "transcript" }) =>
              tab === "transcript" || tab === "review" || tab === "details" ? (
                <Worker key={id} id={id} tab={tab} />
              ) : (
                <Redirect to={`/w/${id}`} replace />
              )
            }
          </Route>
          <Route>
            <div className="page">
              <div className="page-head">
                <PageTitle>There is no such page</PageTitle>
              </div>
              <p>
                <Link href="/">Home</Link>
              </p>
            </div>
          </Route>
        </Switch>
      </Suspense>
    </Shell>
  );
}
