import { useId, useState } from "react";
import { type Answer, answerWords, isAnswered, NO_ANSWER, pick, type Question } from "../lib/questions";
import { Visible } from "./parts";

/** The questions of an agent, each with its choices and a field for words of one's own. */
export function QuestionForm({
  questions,
  off,
  sending,
  onAnswer,
  onLeave,
}: {
  questions: readonly Question[];
  /** Why nothing can be answered now. */
  off: string | null;
  sending: boolean;
  onAnswer: (words: string) => void;
  /** The person has read it and leaves the choice to the agent. */
  onLeave: () => void;
}) {
  const [answers, setAnswers] = useState<readonly Answer[]>(() => questions.map(() => NO_ANSWER));
  const missing = questions.length - answers.filter(isAnswered).length;
  const notYet =
    off ??
    (missing === 0
      ? null
      : missing === questions.length
        ? "nothing is answered yet"
        : `${missing} left to answer`);
  const change = (at: number, answer: Answer) =>
    setAnswers((known) => known.map((one, index) => (index === at ? answer : one)));
  return (
    <form
      className="questions"
      data-testid="questions"
      onSubmit={(event) => {
        event.preventDefault();
        if (notYet === null && !sending) onAnswer(answerWords(questions, answers));
      }}
    >
      {questions.map((question, at) => (
        <QuestionField
          key={at}
          question={question}
          answer={answers[at] ?? NO_ANSWER}
          onChange={(answer) => change(at, answer)}
        />
      ))}
      <div className="permission-actions">
        <button
          type="submit"
          className="button primary"
          data-testid="question-answer"
          disabled={sending || notYet !== null}
          title={notYet ?? undefined}
        >
          Answer
        </button>
        <button
          type="button"
          className="button"
          data-testid="question-leave"
          disabled={sending || off !== null}
          title={off ?? undefined}
          onClick={onLeave}
        >
          Leave it to the agent
        </button>
      </div>
    </form>
  );
}

function QuestionField({
  question,
  answer,
  onChange,
}: {
  question: Question;
  answer: Answer;
  onChange: (answer: Answer) => void;
}) {
  const ids = useId();
  const kind = question.several ? "checkbox" : "radio";
  const previews = question.choices.filter(
    (choice) => choice.preview !== "" && answer.picked.includes(choice.label),
  );
  return (
    <fieldset className="question" data-testid="question">
      <legend>
        {question.header === "" ? null : (
          <span className="question-header text2">
            <Visible text={question.header} />
          </span>
        )}
        <Visible text={question.question} />
        {question.several ? <span className="text3 question-kind"> · any of these</span> : null}
      </legend>
      {question.choices.map((choice) => (
        <label key={choice.label} className="choice">
          <input
            type={kind}
            name={`${ids}-choice`}
            checked={answer.picked.includes(choice.label)}
            onChange={() => onChange(pick(question, answer, choice.label))}
          />
          <span>
            <Visible text={choice.label} />
            {choice.description === "" ? null : (
              <span className="text2 choice-about">
                <Visible text={choice.description} />
              </span>
            )}
          </span>
        </label>
      ))}
      {previews.map((choice) => (
        <figure key={choice.label} className="preview" data-testid="question-preview">
          <figcaption className="text2">
            <Visible text={choice.label} />
          </figcaption>
          <pre>
            <Visible text={choice.preview} />
          </pre>
        </figure>
      ))}
      <label className="question-words">
        <span className="text2">
          {question.choices.length === 0 ? "Your answer" : "Something else, or more to say"}
        </span>
        <input
          type="text"
          value={answer.words}
          data-testid="question-words"
          onChange={(event) => onChange({ ...answer, words: event.target.value })}
        />
      </label>
    </fieldset>
  );
}
