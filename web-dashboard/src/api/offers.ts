/** What the server answers "not available" to: its controls are not shown. */
export const OFFERS: { mergeTrial: boolean; mergeCheck: boolean } = {
  /** `dry_run` of a merge. */
  mergeTrial: false,
  /** `check` of a merge. */
  mergeCheck: false,
};
