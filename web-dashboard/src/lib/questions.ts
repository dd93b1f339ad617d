/** What an agent asks a person (AskUserQuestion), and the words that answer it. Pure. */

export interface Choice {
  label: string;
  description: string;
  preview: string;
}

export interface Question {
  question: string;
  header: string;
  several: boolean;
  choices: Choice[];
}

/** What was picked and written for one question. */
export interface Answer {
  picked: readonly string[];
  words: string;
}

export const NO_ANSWER: Answer = { picked: [], words: "" };

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** The questions of a call; none when it is no such call, or not in the shape that can be shown. */
export function questionsOf(tool: string, input: unknown): Question[] {
  if (tool !== "AskUserQuestion" || typeof input !== "object" || input === null) return [];
  const { questions } = input as { questions?: unknown };
  if (!Array.isArray(questions)) return [];
  const found = questions.map((one): Question | null => {
    if (typeof one !== "object" || one === null) return null;
    const { question, header, multiSelect, options } = one as Record<string, unknown>;
    if (text(question).trim() === "") return null;
    const choices = (Array.isArray(options) ? options : [])
      .map((option): Choice => {
        if (typeof option === "string") return { label: option, description: "", preview: "" };
        const { label, description, preview } = (option ?? {}) as Record<string, unknown>;
        return { label: text(label), description: text(description), preview: text(preview) };
      })
      .filter((choice) => choice.label !== "");
    return { question: text(question), header: text(header), several: multiSelect === true, choices };
  });
  // Half of a call is none of it.
  return found.every((question) => question !== null) ? found : [];
}

/** The next answer when a person picks a choice: of several each is taken or left, of one the last is taken. */
export function pick(question: Question, answer: Answer, label: string): Answer {
  if (!question.several) return { ...answer, picked: [label] };
  const had = answer.picked.includes(label);
  const picked = question.choices
    .map((choice) => choice.label)
    .filter((known) => (known === label ? !had : answer.picked.includes(known)));
  return { ...answer, picked };
}

export function isAnswered(answer: Answer): boolean {
  return answer.picked.length > 0 || answer.words.trim() !== "";
}

/** The words that go to the agent: one line for each question that has an answer. */
export function answerWords(questions: readonly Question[], answers: readonly Answer[]): string {
  const lines = questions.map((question, at) => {
    const { picked, words } = answers[at] ?? NO_ANSWER;
    const said = [picked.join(", "), words.trim()].filter((part) => part !== "").join("; ");
    if (said === "" || questions.length === 1) return said;
    return `${question.header || question.question}: ${said}`;
  });
  return lines.filter((line) => line !== "").join("\n");
}
