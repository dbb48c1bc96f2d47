"""A sixth hundred messages, written before any model was asked about them.

They are what the others lack: offers in one short line, first messages of romance and investment
scams, and thefts of one-time codes; beside each, an ordinary message about the same things. Nothing
is tuned to them, and they may not be changed: once a model has been asked, they only say whether it
may be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KINDS: Final = ("offer", "offer", "romance", "investment", "code")
"""The kind of each message of a language."""

ORDINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        "who buys followers these days lol",
        "pharmacy had no paracetamol, trying the one by the station",
        "Hi, this is Ruth from the choir. Joan gave me your number, is rehearsal at six or seven?",
        "My bank fund lost 4 % this quarter. I'm leaving it alone, it's for the pension anyway.",
        "392 771 is your Harrow Library sign-in code. It is valid for 15 minutes.",
    ),
    "de": (
        "Hast du noch günstige Winterreifen gefunden?",
        "Die Uhr ist eine Kopie, das Original liegt im Museum",
        (
            "Hallo, hier ist Markus vom Elternabend. Ich hatte versprochen, dir das Protokoll zu"
            " schicken, an welche Adresse?"
        ),
        (
            "Beim Depot nehmen sie jetzt Gebühren, ich bleibe trotzdem dort, das Umziehen ist"
            " mir zu mühsam."
        ),
        "Ihr Bestätigungscode für das Bürgerportal lautet 640 118. Geben Sie ihn niemandem weiter.",
    ),
    "fr": (
        "il reste des croquettes pas chères chez Michel ?",
        "L'ordonnance est sur le frigo, pense à passer à la pharmacie",
        (
            "Bonjour, c'est Claire, on s'est croisées à la randonnée dimanche. Tu avais retrouvé"
            " ton bonnet ?"
        ),
        "Le livret est passé à 2,4 %, ce n'est pas énorme mais au moins c'est garanti.",
        "Code de connexion à votre espace mutuelle : 205 963. Il expire dans 10 minutes.",
    ),
    "es": (
        "¿alguien vende una bici barata para mi hijo?",
        "El casino del pueblo organiza la paella del domingo",
        "Hola, soy Nuria, la vecina del tercero. ¿Me podrías abrir cuando llegue el fontanero?",
        "Al final metí lo ahorrado en letras del Tesoro, dan poco pero duermo tranquilo.",
        "Tu código para entrar en la sede del ayuntamiento es 771304. No lo compartas.",
    ),
    "pt": (
        "tem promoção de fralda no mercado da esquina",
        "O médico trocou a receita, o remédio agora é genérico",
        "Oi, aqui é a Lúcia do curso de cerâmica. Você esqueceu o avental, deixo na portaria?",
        (
            "Tirei o dinheiro da poupança e pus no Tesouro Direto, quero ver se rende mais até o"
            " fim do ano."
        ),
        "Seu código de acesso ao portal do aluno é 48 20 15. Válido por 5 minutos.",
    ),
    "ru": (
        "где сейчас недорого купить зимнюю куртку?",
        "В аптеке без рецепта не дали, завтра пойду к врачу",
        (
            "Здравствуйте, это Ольга из садоводства. Вы спрашивали про рассаду, осталось шесть"
            " кустов помидоров."
        ),
        "Вклад закончился, переложил на год под меньший процент, рисковать не хочу.",
        "Код для входа в личный кабинет поликлиники: 5512. Никому его не сообщайте.",
    ),
    "tr": (
        "ucuz bir ütü lazım, bilen var mı?",
        "Eczane kapanmadan ilacı alır mısın",
        (
            "Merhaba, ben Selin, dün kütüphanede yan masadaydım. Şarj aletin bende kalmış,"
            " nereye bırakayım?"
        ),
        "Altına girdim ama azıcık, yarısı da vadeli hesapta dursun dedim.",
        "Kütüphane hesabınız için giriş kodu 309 442. Kod 3 dakika geçerlidir.",
    ),
    "id": (
        "ada yang jual kulkas bekas murah?",
        "Obatnya harus pakai resep dokter, jadi belum dapat",
        "Halo, ini Rina yang kemarin ketemu di posyandu. Foto anak-anak mau saya kirim ke sini?",
        "Uangnya saya taruh di deposito saja, bunganya kecil tapi aman buat sekolah anak.",
        "Kode masuk perpustakaan daerah Anda 884 012. Berlaku 10 menit.",
    ),
    "zh": (
        "楼下超市鸡蛋打折,要不要带一盒?",
        "药店说这个药要处方,我明天再去医院开",
        "你好,我是合唱团的小周,上次的谱子你还有吗?我想复印一份。",
        "今年基金亏了一点,我打算不动它,反正是养老的钱。",
        "【市图书馆】您的登录验证码为 570218,5 分钟内有效。",
    ),
    "ar": (
        "حد يعرف محل يبيع ستائر رخيصة؟",
        "الصيدلية قالت الدواء لازم له وصفة",
        "مرحبا، أنا هالة من دورة الخط، نسيتِ دفترك عندي، أجيبه لك الأحد؟",
        "حطيت جزء من المعاش في شهادات البنك، الفائدة قليلة بس ما فيها مخاطرة.",
        "رمز الدخول إلى بوابة الجامعة هو 316905، صالح لمدة عشر دقائق.",
    ),
}

SCAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        "5000 REAL LIKES $9",
        "tramadol, oxy, xanax shipped overnight no rx",
        (
            "Hello dear, I saw your profile and felt something I can't explain. I am a surgeon"
            " with the UN in Yemen, widowed, looking for a serious woman. Do you have WhatsApp?"
        ),
        (
            "Hi, I'm Amelia, assistant to Professor Grant. He shares three stock picks a day in"
            " a free VIP group, members made 38 % last month. Shall I add you?"
        ),
        (
            "hey it's me, I accidentally had my 6 digit code sent to your phone, can you send it"
            " to me asap"
        ),
    ),
    "de": (
        "Führerschein kaufen ohne Prüfung, Lieferung in 7 Tagen",
        "Rolex Replika ab 99 €",
        (
            "Hallo schöne Frau, dein Lächeln hat mich verzaubert. Ich bin Ingenieur auf einer"
            " Bohrinsel und suche die Liebe fürs Leben, schreib mir bitte privat auf Telegram."
        ),
        (
            "Guten Tag, ich begleite Privatanleger mit einem KI-Handelssystem, 250 € genügen zum"
            " Start, im Schnitt 12 % am Tag. Darf ich Ihnen den Zugang schicken?"
        ),
        (
            "Hier ist Ihre Sparkasse, Betrugsabteilung. Zum Stornieren der Abbuchung von 890 €"
            " nennen Sie uns bitte die TAN, die Sie eben erhalten haben."
        ),
    ),
    "fr": (
        "ABONNÉS INSTAGRAM 1000 = 5€",
        "Permis de conduire enregistré sans examen, paiement après",
        (
            "Bonjour mon ange, ta photo m'a touché en plein cœur. Je suis veuf, militaire en"
            " mission, et je cherche une femme sincère. Donne-moi ton WhatsApp."
        ),
        (
            "Salut, je suis trader depuis 6 ans, je fais fructifier 200 € en 2 000 € en trois"
            " jours, zéro risque. Écris-moi en privé si tu veux changer de vie."
        ),
        (
            "Service fraude de votre banque : un achat de 1 249 € est en cours. Donnez-nous le"
            " code reçu par SMS pour l'annuler."
        ),
    ),
    "es": (
        "SEGUIDORES BARATOS, ENTREGA YA",
        "Pastillas para adelgazar sin receta, 2x1",
        (
            "Hola guapa, no suelo escribir a desconocidas pero tu foto me ha conquistado. Soy"
            " capitán de barco, viudo, con una hija. ¿Hablamos por WhatsApp?"
        ),
        (
            "Buenas, te interesa ganar con cripto sin saber nada? Mi mentora convirtió mis 300 €"
            " en 4.500 € en una semana, te paso su Telegram."
        ),
        (
            "Perdona, te ha llegado por error un código mío de WhatsApp de 6 cifras, ¿me lo"
            " reenvías por favor? Es urgente"
        ),
    ),
    "pt": (
        "CURTIDAS E SEGUIDORES A PARTIR DE R$ 3",
        "Diploma reconhecido sem estudar, entrega em 15 dias",
        (
            "Oi linda, vi sua foto e meu coração disparou. Sou engenheiro americano, viúvo,"
            " quero casar de novo e morar no Brasil. Me passa seu WhatsApp?"
        ),
        (
            "Olá! Aqui é do grupo de sinais, robô que opera sozinho e rende 5% ao dia, a partir"
            " de R$ 100. Quer que eu te coloque na lista VIP?"
        ),
        (
            "Bom dia, para confirmar seu anúncio na OLX me informe o código de 6 números que"
            " chegou por SMS no seu celular."
        ),
    ),
    "ru": (
        "накрутка подписчиков 100р",
        "Диплом с занесением в реестр, недорого",
        (
            "Привет, красавица! Увидел твоё фото и пропал. Я вдовец, военный врач в миссии ООН,"
            " ищу свою половинку, давай продолжим в Телеграм."
        ),
        (
            "Добрый день! Меня зовут Алина, я куратор инвестпроекта. От 10 000 ₽ вы получаете до"
            " 40 % в неделю, выводим на карту каждый день. Рассказать подробнее?"
        ),
        (
            "Вам звонили из Госуслуг, чтобы отменить заявку на кредит, пришлите код из СМС"
            " ответным сообщением."
        ),
    ),
    "tr": (
        "TAKİPÇİ SATIŞI 1000 ADET 20 TL",
        "Reçetesiz zayıflama hapı, kapıda ödeme",
        (
            "Merhaba güzelim, profilini görünce kalbim durdu. Amerikan ordusunda subayım, eşimi"
            " kaybettim, ciddi bir ilişki arıyorum. WhatsApp'tan yazar mısın?"
        ),
        (
            "Selam, evden yatırımla günde 3.000 TL kazanıyorum, hocam her işlemi söylüyor, kayıp"
            " yok. İstersen seni de gruba alayım."
        ),
        "Merhaba, yanlışlıkla senin numarana WhatsApp doğrulama kodum gelmiş, bana iletir misin?",
    ),
    "id": (
        "JUAL FOLLOWERS MURAH 10RB DAPAT 1000",
        "Obat kuat tanpa resep, bayar di tempat",
        (
            "Halo sayang, saya lihat fotomu dan langsung jatuh hati. Saya dokter tentara di"
            " Suriah, duda, ingin menikah di Indonesia. Boleh minta WhatsApp?"
        ),
        (
            "Kak, mau cuan tanpa ribet? Titip dana 500 ribu, tiga jam jadi 5 juta, sudah banyak"
            " bukti transfer. Chat admin sekarang."
        ),
        "Maaf kak, kode OTP saya salah kirim ke nomor kakak, tolong kirimkan 6 angkanya ya",
    ),
    "zh": (
        "刷粉丝刷赞,一元一百",
        "代办文凭学历,网上可查",
        "亲爱的,看到你的照片我心跳加速。我是联合国驻叙利亚的军医,丧偶多年,想找个真心的人,加我微信聊吧。",
        "您好,我是王老师的助理,每天免费推荐三只牛股,群里会员上个月收益都超过四成,拉您进群好吗?",
        "我是平台客服,为您取消每月800元的会员扣费,请把刚收到的短信验证码告诉我。",
    ),
    "ar": (
        "بيع متابعين انستقرام رخيص",
        "شهادات جامعية معتمدة بدون دراسة",
        (
            "مرحبا يا جميلة، رأيت صورتك ووقعت في حبك. أنا ضابط أمريكي أرمل وأبحث عن زوجة صادقة،"
            " راسليني على واتساب."
        ),
        (
            "السلام عليكم، معنا تستثمر 100 دولار وتستلم 1000 دولار خلال أسبوع وبدون أي مخاطرة،"
            " هل أضيفك إلى المجموعة؟"
        ),
        "معك البنك المركزي، بطاقتك موقوفة، أرسل الرمز الذي وصلك في رسالة لتفعيلها الآن.",
    ),
}
