import { useId, useMemo, useState } from "react";
import { useLocation, useSearchParams } from "wouter";
import { ApiError, errorText, post } from "../api/client";
import type { CreateTask, TaskAccepted } from "../api/types";
import { fieldOf, type TaskField } from "../lib/problems";
import { useStore } from "../store/store";
import { NOT_LIVE, useDraft, useIsLive } from "../ui/hooks";
import { PageTitle } from "../ui/shell";
import { toast } from "../ui/toasts";

const newKey = (): string => crypto.randomUUID();

export function NewTask() {
  const [query] = useSearchParams();
  const [, navigate] = useLocation();
  const [prompt, setPrompt] = useDraft("new.prompt");
  const [repo, setRepo] = useDraft("new.repo");
  const [base, setBase] = useDraft("new.base");
  const [storedModel, setModel] = useDraft("new.model");
  const [workers, setWorkers] = useDraft("new.workers");
  const [preset, setPreset] = useState(query.get("model"));
  const model = preset ?? storedModel;
  const [unattended, setUnattended] = useState(false);
  const [solo, setSolo] = useState(false);
  // Made when the form opens: a double click, or a second try after a lost answer, starts one task.
  const [key, setKey] = useState(newKey);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<{ field: TaskField; error: Error } | null>(null);
  const live = useIsLive();
  const ids = useId();

  const sessions = useStore((state) => state.overview.data?.sessions);
  const repos = useMemo(() => [...new Set(sessions?.map((session) => session.repo))], [sessions]);
  const models = useMemo(
    () => [...new Set([...(sessions?.map((session) => session.model) ?? []), "demo"])],
    [sessions],
  );

  const count = workers.trim() === "" ? null : Number(workers);
  const countBad = count !== null && (!Number.isInteger(count) || count < 1);

  const start = () => {
    if (busy || !live) return;
    const missing: TaskField | null =
      repo.trim() === "" ? "repo" : prompt.trim() === "" ? "prompt" : countBad ? "workers" : null;
    if (missing !== null) {
      const words = {
        repo: "name a directory inside the repository",
        prompt: "say what should happen",
        workers: "a whole number from 1",
      };
      setError({ field: missing, error: new Error(words[missing as "repo" | "prompt" | "workers"]) });
      document.getElementById(`${ids}-${missing}`)?.focus();
      return;
    }
    setBusy(true);
    setError(null);
    const task: CreateTask = {
      prompt: prompt.trim(),
      repo: repo.trim(),
      ...(base.trim() === "" ? {} : { base: base.trim() }),
      ...(model.trim() === "" ? {} : { model: model.trim() }),
      ...(unattended ? { unattended: true } : {}),
      ...(solo ? { solo: true } : {}),
      ...(count === null ? {} : { max_workers: count }),
    };
    post<TaskAccepted>("/tasks", task, { headers: { "idempotency-key": key }, timeoutMs: 60_000 })
      .then(
        (accepted) => {
          setPrompt("");
          setBase("");
          for (const notice of accepted.notices) toast(notice);
          navigate(`/s/${accepted.session_id}`);
        },
        (failure: unknown) => {
          const code = failure instanceof ApiError ? failure.code : "";
          const field = fieldOf(code);
          setError({ field, error: failure instanceof Error ? failure : new Error(errorText(failure)) });
          // A refusal is final for its key: what is changed now is another request.
          if (failure instanceof ApiError && failure.status >= 400 && failure.status < 500) setKey(newKey());
          if (field !== "form") document.getElementById(`${ids}-${field}`)?.focus();
        },
      )
      .finally(() => setBusy(false));
  };

  const problem = (field: TaskField) =>
    error?.field === field ? (
      <p
        className="field-error hue-fail"
        role="alert"
        id={`${ids}-${field}-error`}
        data-testid={`error-${field}`}
      >
        {error.error.message}
        {error.error instanceof ApiError ? (
          <>
            {error.error.causes.map((cause) => (
              <span key={cause} className="block">
                {cause}
              </span>
            ))}
            {error.error.hint ? <span className="block text2">{error.error.hint}</span> : null}
            <span className="block mono text3">{error.error.code}</span>
          </>
        ) : null}
      </p>
    ) : null;
  const wiring = (field: TaskField) => ({
    id: `${ids}-${field}`,
    "aria-invalid": error?.field === field,
    "aria-describedby": error?.field === field ? `${ids}-${field}-error` : undefined,
  });

  return (
    <div className="page scroll" data-testid="page-new">
      <div className="page-head">
        <PageTitle>New task</PageTitle>
      </div>
      <form
        className="form"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          start();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.nativeEvent.isComposing) {
            event.preventDefault();
            start();
          }
        }}
      >
        <div className="field">
          <label htmlFor={`${ids}-repo`}>Repository</label>
          <input
            {...wiring("repo")}
            type="text"
            className="mono"
            list={`${ids}-repos`}
            value={repo}
            placeholder="/path/to/repository"
            spellCheck={false}
            autoComplete="off"
            data-testid="new-repo"
            onChange={(event) => setRepo(event.target.value)}
          />
          <datalist id={`${ids}-repos`}>
            {repos.map((path) => (
              <option key={path} value={path} />
            ))}
          </datalist>
          {problem("repo")}
        </div>
        <div className="field">
          <label htmlFor={`${ids}-prompt`}>What should happen</label>
          <textarea
            {...wiring("prompt")}
            rows={7}
            value={prompt}
            placeholder="Refactor the auth module, keep its API; then make the tests pass."
            data-testid="new-prompt"
            onChange={(event) => setPrompt(event.target.value)}
          />
          {problem("prompt")}
        </div>
        <div className="field-row">
          <div className="field">
            <label htmlFor={`${ids}-base`}>Base</label>
            <input
              {...wiring("base")}
              type="text"
              className="mono"
              value={base}
              placeholder="HEAD"
              spellCheck={false}
              autoComplete="off"
              data-testid="new-base"
              onChange={(event) => setBase(event.target.value)}
            />
            {problem("base")}
          </div>
          <div className="field">
            <label htmlFor={`${ids}-model`}>Model</label>
            <input
              {...wiring("model")}
              type="text"
              className="mono"
              list={`${ids}-models`}
              value={model}
              placeholder="the configured one"
              spellCheck={false}
              autoComplete="off"
              data-testid="new-model"
              onChange={(event) => {
                setPreset(null);
                setModel(event.target.value);
              }}
            />
            <datalist id={`${ids}-models`}>
              {models.map((name) => (
                <option key={name} value={name} />
              ))}
            </datalist>
            {problem("model")}
          </div>
          <div className="field narrow">
            <label htmlFor={`${ids}-workers`}>Workers at once</label>
            <input
              {...wiring("workers")}
              type="text"
              inputMode="numeric"
              value={workers}
              placeholder="as configured"
              data-testid="new-workers"
              onChange={(event) => setWorkers(event.target.value)}
            />
            {problem("workers")}
          </div>
        </div>
        {model.trim() === "demo" ? (
          <p className="text2">
            The demonstration: a scripted model inside the server drives real workers, worktrees and branches,
            without a key or a network.
          </p>
        ) : null}
        <label className="check">
          <input
            type="checkbox"
            checked={unattended}
            data-testid="new-unattended"
            onChange={(event) => setUnattended(event.target.checked)}
          />{" "}
          unattended: whatever would ask is denied
        </label>
        <label className="check">
          <input
            type="checkbox"
            checked={solo}
            data-testid="new-solo"
            onChange={(event) => setSolo(event.target.checked)}
          />{" "}
          one agent alone: it begins in your checkout, and goes into a worktree to change something
        </label>
        {problem("form")}
        <div className="form-foot">
          <span className="text3">{live ? "the draft is kept in this browser" : NOT_LIVE}</span>
          <button type="submit" className="button primary" data-testid="new-start" disabled={busy || !live}>
            {busy ? "Starting…" : "Start"} <kbd>Ctrl ↵</kbd>
          </button>
        </div>
      </form>
    </div>
  );
}
