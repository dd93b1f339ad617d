export function Login({ failed }: { failed: string | null }) {
  return (
    <main className="login" data-testid="page-login">
      <img src="/favicon.svg" alt="" width={48} height={48} />
      <h1>
        Open <code>swarm dashboard</code> again
      </h1>
      <p>
        This browser is not signed in, or its sign-in has ended. In a shell on this machine, run{" "}
        <code>swarm dashboard</code> and open the address it prints: the code in it works once, for five
        minutes.
      </p>
      {failed ? (
        <p className="hue-fail" role="alert" data-testid="login-error">
          {failed}
        </p>
      ) : null}
      <button type="button" className="button" onClick={() => location.reload()}>
        Try again
      </button>
    </main>
  );
}
