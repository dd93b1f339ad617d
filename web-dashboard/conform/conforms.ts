/**
 * What the dashboard reads is what the server sends, and what it sends is what the server takes: `src/api/types.ts` against
 * the types made from the server's OpenAPI document. Whether a field that may be empty is null or left out, the
 * document does not say, so that alone is not compared.
 */
import type * as Own from "../src/api/types";
import type { components } from "./openapi";

type Wire = components["schemas"];
/** Without null, field by field. */
type Bare<T> = T extends (infer U)[]
  ? Bare<U>[]
  : T extends object
    ? { [K in keyof T]: Bare<NonNullable<T[K]>> }
    : T;
/** The same with all that may be sent. */
type Whole<T> = T extends (infer U)[]
  ? Whole<U>[]
  : T extends object
    ? { [K in keyof T]-?: Whole<NonNullable<T[K]>> }
    : T;
type Fits<_To, _From extends _To> = true;

export type Checked = [
  Fits<Bare<Own.Timestamp>, Whole<Wire["Timestamp"]>>,
  Fits<Bare<Own.SessionId>, Whole<Wire["SessionId"]>>,
  Fits<Bare<Own.TaskId>, Whole<Wire["TaskId"]>>,
  Fits<Bare<Own.WorkerId>, Whole<Wire["WorkerId"]>>,
  Fits<Bare<Own.PermissionRequestId>, Whole<Wire["PermissionRequestId"]>>,
  Fits<Bare<Own.Usage>, Whole<Wire["Usage"]>>,
  Fits<Bare<Own.Cost>, Whole<Wire["Cost"]>>,
  Fits<Bare<Own.WorkerStatus>, Whole<Wire["WorkerStatus"]>>,
  Fits<Bare<Own.WaitingFor>, Whole<Wire["WaitingFor"]>>,
  Fits<Bare<Own.SessionState>, Whole<Wire["SessionState"]>>,
  Fits<Bare<Own.Verdict>, Whole<Wire["Verdict"]>>,
  Fits<Bare<Own.PermissionMode>, Whole<Wire["PermissionMode"]>>,
  Fits<Bare<Own.Doubt>, Whole<Wire["Doubt"]>>,
  Fits<Bare<Own.CheckResult>, Whole<Wire["CheckResult"]>>,
  Fits<Bare<Own.ExitReason>, Whole<Wire["ExitReason"]>>,
  Fits<Bare<Own.FileChange>, Whole<Wire["FileChange"]>>,
  Fits<Bare<Own.CommandRun>, Whole<Wire["CommandRun"]>>,
  Fits<Bare<Own.Outcome>, Whole<Wire["Outcome"]>>,
  Fits<Bare<Own.NotificationKey>, Whole<Wire["NotificationKey"]>>,
  Fits<Bare<Own.Notification>, Whole<Wire["Notification"]>>,
  Fits<Bare<Own.LedgerStep>, Whole<Wire["LedgerStep"]>>,
  Fits<Bare<Own.LedgerEntry>, Whole<Wire["LedgerEntry"]>>,
  Fits<Bare<Own.WorkerView>, Whole<Wire["WorkerView"]>>,
  Fits<Bare<Own.BudgetView>, Whole<Wire["BudgetView"]>>,
  Fits<Bare<Own.SessionView>, Whole<Wire["SessionView"]>>,
  Fits<Bare<Own.ConversationItem>, Whole<Wire["ConversationItem"]>>,
  Fits<Bare<Own.TaskView>, Whole<Wire["TaskView"]>>,
  Fits<Bare<Own.SessionDetail>, Whole<Wire["SessionDetail"]>>,
  Fits<Bare<Own.UnreadMessage>, Whole<Wire["UnreadMessage"]>>,
  Fits<Bare<Own.WorkerDetail>, Whole<Wire["WorkerDetail"]>>,
  Fits<Bare<Own.DiffView>, Whole<Wire["DiffView"]>>,
  Fits<Bare<Own.MergeStrategy>, Whole<Wire["MergeStrategy"]>>,
  Fits<Wire["MergeBody"], Own.MergeBody>,
  Fits<Bare<Own.ConflictFile>, Whole<Wire["ConflictFile"]>>,
  Fits<Bare<Own.MergeView>, Whole<Wire["MergeView"]>>,
  Fits<Bare<Own.DiscardView>, Whole<Wire["DiscardView"]>>,
  Fits<Bare<Own.RestoreView>, Whole<Wire["RestoreView"]>>,
  Fits<Bare<Own.PermissionRequest>, Whole<Wire["PermissionRequest"]>>,
  Fits<Bare<Own.PermissionRacer>, Whole<Wire["PermissionRacer"]>>,
  Fits<Bare<Own.Decision>, Whole<Wire["Decision"]>>,
  Fits<Bare<Own.Scope>, Whole<Wire["Scope"]>>,
  Fits<Bare<Own.Racer>, Whole<Wire["Racer"]>>,
  Fits<Bare<Own.PermissionDecision>, Whole<Wire["PermissionDecision"]>>,
  Fits<Bare<Own.PermissionView>, Whole<Wire["PermissionView"]>>,
  Fits<Wire["AnswerPermission"], Own.AnswerPermission>,
  Fits<Bare<Own.AnsweredPermission>, Whole<Wire["AnsweredPermission"]>>,
  Fits<Bare<Own.AnsweredOne>, Whole<Wire["AnsweredOne"]>>,
  Fits<Bare<Own.MessageAccepted>, Whole<Wire["MessageAccepted"]>>,
  Fits<Bare<Own.StopView>, Whole<Wire["StopView"]>>,
  Fits<Wire["CreateTask"], Own.CreateTask>,
  Fits<Bare<Own.TaskAccepted>, Whole<Wire["TaskAccepted"]>>,
  Fits<Bare<Own.OverviewRow>, Whole<Wire["OverviewRow"]>>,
  Fits<Bare<Own.Overview>, Whole<Wire["Overview"]>>,
  Fits<Bare<Own.ServerInfo>, Whole<Wire["ServerInfo"]>>,
  Fits<Bare<Own.Problem>, Whole<Wire["Problem"]>>,
  Fits<Bare<Own.Live>, Whole<Wire["Live"]>>,
];
