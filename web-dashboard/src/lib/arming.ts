/**
 * When a key may answer a permission request. A card is framed by a person's own move; it arms a moment
 * later; a key that is held down, or aimed at another card, or pressed a second time, answers nothing.
 */

export const ARM_MS = 400;

export interface Arming {
  /** The framed card's request. */
  framed: string | null;
  /** When it was framed. */
  at: number;
  /** Requests this page has answered or is answering. */
  answered: ReadonlySet<string>;
}

export const DISARMED: Arming = { framed: null, at: 0, answered: new Set() };

export function frame(state: Arming, id: string | null, now: number): Arming {
  if (state.framed === id) return state;
  return { ...state, framed: id, at: now };
}

/** The page was hidden or lost the keyboard: whatever is framed must arm anew. */
export function rearm(state: Arming, now: number): Arming {
  return state.framed === null ? state : { ...state, at: now };
}

export function answered(state: Arming, id: string): Arming {
  return { ...state, answered: new Set(state.answered).add(id) };
}

/** An answer did not reach the server: it may be given again, after arming anew. */
export function unanswered(state: Arming, id: string, now: number): Arming {
  const rest = new Set(state.answered);
  rest.delete(id);
  return { ...state, answered: rest, at: now };
}

export interface Press {
  repeat: boolean;
  /** Composing text, or a modifier that makes it another key. */
  other: boolean;
  /** A text field has the focus. */
  inText: boolean;
}

export function armed(state: Arming, id: string, now: number): boolean {
  return state.framed === id && !state.answered.has(id) && now - state.at >= ARM_MS;
}

export function mayAnswer(state: Arming, id: string, press: Press, now: number): boolean {
  if (press.repeat || press.other || press.inText) return false;
  return armed(state, id, now);
}
