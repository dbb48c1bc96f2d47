"""A second hundred messages, written before any model was asked about them.

Fifty ordinary ones and fifty scams of today in ten languages. Nothing is tuned to them, and they
may not be changed: once a model has been asked, they only say whether it may be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORDINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        "Running about ten minutes late, the bus never came. Order me a flat white please?",
        (
            "Your table for 4 at The Copper Pot is booked for Friday 12 June, 19:30. To change "
            "or cancel, call us on 0161 496 0127 before noon on the day."
        ),
        (
            "Receipt from Hollis Hardware\n\n2 x wood screws 4.50\n1 x paint brush 6.99\nTotal "
            "paid by card: 15.99\nReturns within 28 days with this receipt."
        ),
        (
            "Hi Marta, attached are the minutes from Tuesday. Could you check the numbers on "
            "page 3 before I send it round? No rush, end of the week is fine.\n\nCheers,\nOwen"
        ),
        (
            "Your monthly electricity bill of £64.20 is ready in your online account. We will "
            "take it by direct debit on 3 March, so you don't need to do anything."
        ),
    ),
    "de": (
        (
            "Kannst du auf dem Heimweg noch Milch und Brot mitbringen? Ich schaff's heute nicht "
            "mehr zum Laden."
        ),
        (
            "Guten Tag Frau Lindner, Ihr Rezept liegt in unserer Praxis zur Abholung bereit. Wir "
            "haben heute bis 18 Uhr geöffnet. Ihr Praxisteam Dr. Hauser"
        ),
        (
            "Ihre Sendung wird morgen zwischen 11 und 13 Uhr zugestellt. Wenn Sie nicht zu Hause "
            "sind, geben wir das Paket bei einem Nachbarn ab."
        ),
        (
            "Betreff: Elternabend der 4b\n\nLiebe Eltern,\n\nunser Elternabend findet am "
            "Mittwoch, dem 8. Oktober, um 19 Uhr im Klassenzimmer statt. Themen sind die "
            "Klassenfahrt und die weiterführenden Schulen.\n\nHerzliche Grüße\nK. Brandt"
        ),
        (
            "Ihre Kündigung ist bei uns eingegangen. Der Vertrag endet am 31.08., die letzte "
            "Rechnung über 19,99 € erhalten Sie per Post. Schade, dass Sie gehen."
        ),
    ),
    "fr": (
        (
            "On se retrouve devant le cinéma à 20h15 ? J'ai déjà pris les billets, tu me "
            "rembourseras plus tard."
        ),
        (
            "Bonjour, votre voiture est prête. Vous pouvez passer la récupérer au garage jusqu'à "
            "18h30, le montant de la réparation est de 214 €."
        ),
        (
            "Votre commande n° 58213 a été expédiée. Suivez votre colis depuis la rubrique « Mes "
            "commandes » de l'application. À bientôt !"
        ),
        (
            "Rappel : rendez-vous avec le Dr Lemoine mardi 14 à 9h40. En cas d'empêchement, "
            "merci de prévenir le secrétariat au 01 70 18 44 02."
        ),
        (
            "Salut Inès, le propriétaire a enfin répondu : il fait venir le plombier jeudi "
            "matin. Tu seras là ou je laisse la clé à la voisine ?"
        ),
    ),
    "pt": (
        (
            "Mãe, cheguei bem! A viagem foi cansativa mas o quarto é bonito. Ligo-te amanhã "
            "depois do almoço."
        ),
        (
            "Pagamento recebido. Obrigado, Ricardo! A mensalidade de maio da academia no valor "
            "de R$ 119,90 está quitada."
        ),
        (
            "Seu código de acesso é 482 917. Ele vale por 5 minutos. Não compartilhe com "
            "ninguém, nem com nossos atendentes."
        ),
        (
            "Pessoal, a reunião de amanhã passou para as 15h porque a sala estava ocupada. A "
            "pauta é a mesma. Abraço, Helena"
        ),
        (
            "A sua fatura de água está disponível na área de cliente. Valor: 23,41 €. Data do "
            "débito direto: 18 de novembro."
        ),
    ),
    "pl": (
        "Hej, masz jeszcze tę wiertarkę? Chcę w sobotę powiesić półki, oddam w niedzielę.",
        (
            "Przypominamy o wizycie u dentysty w czwartek o 16:20. Jeśli nie możesz przyjść, "
            "odwołaj wizytę telefonicznie: 22 555 01 43."
        ),
        (
            "Paczka czeka w automacie przy ul. Lipowej 12. Masz 48 godzin na odbiór, kod "
            "znajdziesz w aplikacji."
        ),
        (
            "Dzień dobry, przesyłam poprawioną umowę. Zmieniłam tylko § 4 zgodnie z Pana "
            "uwagami. Proszę o podpis do piątku.\n\nPozdrawiam\nAgnieszka Sowa"
        ),
        (
            "Na koncie zaksięgowano przelew: 3 250,00 PLN, nadawca: Zakład Pracy, tytuł: "
            "wynagrodzenie za wrzesień."
        ),
    ),
    "tr": (
        "Akşam yemeğe bize gelsenize, annem mantı yapıyor. Saat yedi gibi bekliyoruz.",
        (
            "Sayın Elif Kaya, 17 Nisan saat 10:30 göz muayenesi randevunuz onaylanmıştır. Lütfen "
            "kimliğinizi yanınızda getirin."
        ),
        (
            "Siparişiniz hazırlanıyor. Kargoya verildiğinde size ayrıca haber vereceğiz. Bizi "
            "tercih ettiğiniz için teşekkürler."
        ),
        (
            "Kartınızla 245,60 TL tutarında market alışverişi yapıldı. Kullanılabilir limitiniz "
            "12.480 TL."
        ),
        (
            "Arkadaşlar, yarınki sınav C blok 204 numaralı sınıfta. Hesap makinesi serbest, "
            "telefonlar kapalı olacak."
        ),
    ),
    "id": (
        "Bu, aku pulang agak malam ya, masih ada rapat. Makan dulu aja, jangan nungguin.",
        (
            "Pesanan Anda sedang diantar oleh Pak Joko. Perkiraan tiba pukul 12.40. Mohon "
            "siapkan uang pas Rp 58.000."
        ),
        (
            "Yth. Bapak/Ibu, besok air akan dimatikan pukul 09.00-13.00 karena perbaikan pipa. "
            "Mohon maaf atas ketidaknyamanannya. Pengelola Apartemen"
        ),
        (
            "Tiket kereta Anda sudah terbit. Argo Lawu, Sabtu 21 Juni, kursi 7C. Tunjukkan kode "
            "pemesanan di stasiun saat boarding."
        ),
        (
            "Halo Dewi, laporan keuangannya sudah saya terima, terima kasih. Ada dua angka di "
            "tabel ketiga yang perlu dicek lagi."
        ),
    ),
    "ru": (
        "Ты ключи на столе забыл. Я до восьми дома, потом уеду, так что заезжай пораньше.",
        (
            "Ваша запись к терапевту: 23 октября, 14:10, кабинет 305. Отменить запись можно в "
            "регистратуре или на портале поликлиники."
        ),
        (
            "Заказ 77120 готов к выдаче. Пункт на Садовой, 9, ежедневно с 10 до 21. Срок "
            "хранения 7 дней."
        ),
        (
            "Коллеги, напоминаю: отчёты за квартал ждём до пятницы. Шаблон лежит в общей папке, "
            "вопросы - к Наталье."
        ),
        "Оплата прошла: интернет, 550 р. Следующее списание 1 числа. Чек отправлен на вашу почту.",
    ),
    "ar": (
        "صباح الخير، هل نلتقي اليوم بعد صلاة العصر في المقهى القديم؟ أحمد سيأتي أيضا.",
        (
            "تم تأكيد موعدكم في عيادة الأسنان يوم الاثنين الساعة الخامسة مساء. نرجو الحضور قبل "
            "الموعد بعشر دقائق."
        ),
        "تم سحب 300 ريال من حسابكم عبر الصراف الآلي، فرع الملك فهد. الرصيد المتاح 4,215 ريال.",
        "طلبك في الطريق إليك وسيصل خلال ثلاثين دقيقة. يمكنك متابعة السائق من خلال التطبيق.",
        (
            "الزملاء الأعزاء، أرفقت لكم جدول الدوام للأسبوع القادم. من لديه ملاحظات فليخبرني قبل "
            "يوم الخميس."
        ),
    ),
    "zh": (
        "我到地铁站了,你在哪个出口等我?外面雨挺大的,别忘了带伞。",
        "【顺路快递】您的包裹已放至小区3号楼快递柜,取件码请在App内查看,24小时内免费保管。",
        "王女士您好,您预约的体检时间为6月9日上午8:30,请空腹前来,并携带身份证。",
        "您尾号3390的储蓄卡于10月5日14:22支出人民币86.50元,余额5,310.27元。",
        "各位同学,下周三的课改到周五下午两点,地点不变。作业请在周四晚上之前交到邮箱。",
    ),
}

SCAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "en": (
        (
            "Hi dad its me, my phone fell in the toilet and this is my friends number. Whats app "
            "me here asap, I need you to pay something for me today"
        ),
        (
            "DVLA: Your vehicle tax payment failed. Update your payment details within 24h to "
            "avoid a £1,000 penalty: https://dvla-renew-tax.melvorta.info"
        ),
        (
            "Dear colleague, I'm stuck in a meeting and can't talk. I need you to buy five $200 "
            "Apple gift cards for a client right now and email me the codes. Keep this between "
            "us, you will be reimbursed today."
        ),
        (
            "Our mentor group turned $500 into $9,400 in eleven days with AI trading signals. "
            "Spots are almost gone, join the WhatsApp community free: chat.korvalen.top/vip"
        ),
        (
            "We recorded you through your webcam while you visited adult sites. Send $1,250 in "
            "Bitcoin to the wallet below within 48 hours or the video goes to all your contacts."
        ),
    ),
    "de": (
        (
            "Sparkasse: Ihr pushTAN-Zugang läuft heute ab. Bitte aktualisieren Sie Ihre Daten "
            "umgehend, sonst wird Ihr Konto gesperrt: https://spk-pushtan.dorlinex.com"
        ),
        (
            "Hallo Mama, mein Handy ist kaputt, das ist meine neue Nummer. Schreib mir bitte bei "
            "WhatsApp, ich muss dringend eine Rechnung überweisen und komme nicht ins Banking."
        ),
        (
            "Sehr geehrte Kundin, eine Zollgebühr von 2,99 € steht noch aus. Ohne Zahlung "
            "innerhalb von 12 Stunden geht Ihr Paket zurück an den Absender: "
            "zoll-paket.lanvex.click"
        ),
        (
            "Sie wurden ausgewählt! Arbeiten Sie von zu Hause, 30 Minuten am Tag Videos "
            "bewerten, 150-400 € täglich. Keine Erfahrung nötig. Melden Sie sich per Telegram: "
            "@jobteam_lena"
        ),
        (
            "Ihre Einlage aus der Krypto-Plattform über 18.420 € wurde gefunden und kann "
            "ausgezahlt werden. Für die Freigabe ist vorab eine Steuer von 390 € zu entrichten. "
            "Antworten Sie mit Ihren Bankdaten."
        ),
    ),
    "fr": (
        (
            "AMELI : votre nouvelle carte Vitale est disponible. Remplissez le formulaire et "
            "réglez 0,99 € de frais d'envoi pour rester couvert : "
            "https://carte-vitale.orvamel.site"
        ),
        (
            "Bonjour, c'est le livreur. Votre colis n'entre pas dans la boîte aux lettres. Merci "
            "de choisir un nouveau créneau ici sinon retour à l'expéditeur : "
            "livraison.querdia.top"
        ),
        (
            "Félicitations ! Vous avez gagné un iPhone 17 au tirage au sort de notre magasin. Il "
            "ne reste que 3 lots, cliquez vite et payez seulement 1,95 € : gagnant.solvex.online"
        ),
        (
            "Madame, je suis le notaire de feu M. Delcourt, décédé sans héritier. La somme de "
            "4,2 millions d'euros peut vous revenir. Gardez cela confidentiel et répondez à mon "
            "adresse privée."
        ),
        (
            "Votre amende de 35 € n'a pas été payée. Dernier rappel avant majoration à 375 €. "
            "Régularisez tout de suite : https://amendes-paiement.tormel.info"
        ),
    ),
    "pt": (
        (
            "Oi mãe, troquei de número, salva esse aí e apaga o antigo. Consegue me fazer um pix "
            "de 1.480 agora? O app do meu banco travou, te devolvo amanhã"
        ),
        (
            "CORREIOS: sua encomenda foi retida na alfândega. Pague a taxa de R$ 34,90 hoje para "
            "evitar a devolução: https://taxa-correios.brimelon.shop"
        ),
        (
            "Você tem valores a receber do governo! Consulte seu CPF e libere até R$ 5.782,00 "
            "ainda hoje. Acesse: resgate-valores.melquin.site"
        ),
        (
            "Trabalho em casa: curta vídeos no celular e ganhe de 200 a 900 reais por dia, "
            "pagamento na hora via PIX. Vagas limitadas, chama no WhatsApp +55 11 95555-0172"
        ),
        (
            "Banco: compra de R$ 3.299,00 APROVADA nas Casas Bahia. Se não reconhece, ligue "
            "imediatamente para 0800 555 0193 e confirme sua senha com o atendente."
        ),
    ),
    "pl": (
        (
            "Cześć mamo, zepsuł mi się telefon, piszę z nowego numeru. Podeślij mi proszę kod "
            "BLIK na 900 zł, oddam wieczorem, tylko nie dzwoń bo jestem na zajęciach"
        ),
        (
            "InPost: Twoja paczka została wstrzymana z powodu niedopłaty 1,49 zł. Dopłać teraz, "
            "aby uniknąć zwrotu: https://inpost-doplata.werlan.cyou"
        ),
        (
            "PGE: W związku z zaległością zaplanowano odłączenie prądu na dzień jutrzejszy. "
            "Ureguluj 6,83 zł: https://pge-platnosci.tamvex.info"
        ),
        (
            "Inwestuj w Orlen już od 900 zł i zarabiaj do 15 000 zł miesięcznie! Gwarantowany "
            "zysk, program rządowy. Zostaw numer telefonu, a doradca oddzwoni: zysk.norlia.top"
        ),
        (
            "Dzień dobry, kupię z OLX Pani płaszcz. Już zapłaciłam, proszę podać dane karty, aby "
            "odebrać pieniądze: https://olx-dostawa.quelnor.link"
        ),
    ),
    "tr": (
        (
            "e-Devlet: Adınıza kesilmiş 1.230 TL trafik cezası bulunmaktadır. Bugün öderseniz "
            "%75 indirim: https://ceza-sorgula.malvori.xyz"
        ),
        (
            "Tebrikler! Çekilişimizde 50.000 TL değerinde hediye kazandınız. Hediyenizi almak "
            "için kart bilgilerinizi girin: hediye.delnara.click"
        ),
        (
            "Anne benim, telefonum bozuldu bu numara arkadaşın. Acil 8000 lira lazım, şu IBAN'a "
            "atar mısın, akşam anlatırım kimseye söyleme"
        ),
        (
            "Günde 1 saat telefondan çalışarak haftada 15.000 TL kazan! Ürünlere beğeni yap, "
            "ödemeni hemen al. Detaylar için Telegram'dan yaz: @kazanc_destek7"
        ),
        (
            "%100 deneme bonusu! Üye ol, 500 TL bedava bahis kap, çevrim şartı yok, anında "
            "çekim. Güncel giriş: bahis724.lorven.vip"
        ),
    ),
    "id": (
        (
            "Selamat! Nomor Anda terpilih sebagai pemenang undian BRI Rp 150 juta. Hubungi "
            "0812-5550-0147 dan siapkan biaya administrasi Rp 750 ribu."
        ),
        (
            "Mohon maaf mengganggu, ini undangan pernikahan kami. Silakan buka file Undangan.apk "
            "untuk melihat lokasi acara."
        ),
        (
            "Dicari karyawan paruh waktu, cukup like & follow akun, gaji 300-800 ribu per hari "
            "langsung cair. Minat? Chat admin WA wa.me/6281255500163"
        ),
        (
            "Nasabah yth, tarif transfer berubah menjadi Rp 150.000/bulan. Bila tidak setuju "
            "segera isi formulir: https://bank-konfirmasi.tarmelo.site"
        ),
        (
            "Ma, ini Rian pakai HP teman, aku kena tilang polisi. Tolong transfer 3 juta ke "
            "rekening pak polisi sekarang, nanti aku ganti. Jangan bilang papa dulu."
        ),
    ),
    "ru": (
        (
            "Здравствуйте, это служба безопасности Центрального банка. На ваше имя оформляют "
            "кредит. Чтобы спасти деньги, переведите их на безопасный счёт. Никому не сообщайте "
            "о звонке."
        ),
        (
            "Привет! Проголосуй, пожалуйста, за мою племянницу в конкурсе рисунков, ей очень "
            "нужен твой голос: https://golos-deti.vermela.top"
        ),
        (
            "Госуслуги: в ваш аккаунт выполнен вход с нового устройства. Если это не вы, срочно "
            "позвоните 8 800 555-01-74 и назовите код из смс."
        ),
        (
            "Ищу 3 человек в команду. Арбитраж криптовалют, от 120$ в день, обучаем бесплатно, "
            "нужен только телефон. Пиши плюс в личку @alina_profit_24"
        ),
        (
            "Вам начислена компенсация 87 400 руб. как пострадавшему от брокеров. Для получения "
            "оплатите пошлину 1 290 руб. и укажите номер карты: vyplata.kormelin.site"
        ),
    ),
    "ar": (
        (
            "عزيزي العميل، تم إيقاف بطاقتك البنكية لعدم تحديث البيانات. حدث بياناتك الآن لتفادي "
            "تجميد الحساب: https://bank-update.salvori.xyz"
        ),
        (
            "مبروك! ربحت سيارة ومبلغ 100 ألف ريال في سحب المراعي. أرسل صورة هويتك ورقم حسابك على "
            "الواتساب 0555501820 لاستلام الجائزة."
        ),
        (
            "البريد السعودي: شحنتك معلقة بسبب رسوم غير مدفوعة قدرها 11.50 ريال. ادفع خلال 24 "
            "ساعة: post-sa.domelin.click"
        ),
        (
            "وظيفة من المنزل، ساعة واحدة يوميا وراتب يصل إلى 500 دولار في اليوم بدون خبرة. "
            "للتسجيل تواصل معنا على تليجرام @work_home_55"
        ),
        (
            "أنا أرملة مريضة بالسرطان وأريد أن أتبرع بثروتي البالغة ثلاثة ملايين دولار عن طريقك "
            "للأعمال الخيرية. أرجو الرد سرا على بريدي الخاص."
        ),
    ),
    "zh": (
        (
            "【ETC中心】您的ETC已停用,为避免影响出行,请尽快点击链接重新认证银行卡信息:e"
            "tc-rz.molvane.top"
        ),
        (
            "兼职招聘:在家用手机给商家点赞刷单,日结300-800元,无需押金,名额有限,加微信 zz88job "
            "备注兼职"
        ),
        (
            "爸,我手机坏了,用同学的号发的。学校要交补课费16800元,今天截止,你先转到老师"
            "这个账户,别打电话在上课"
        ),
        (
            "内部消息:下周这三只股票必涨停,跟着老师操作稳赚不赔,收益翻倍。扫码进群免费"
            "领取牛股,群满即止"
        ),
        (
            "这里是公安局,你名下的银行卡涉嫌洗钱,请立即配合调查,将资金转入安全账户核查,"
            "案件保密不得告诉家人。"
        ),
    ),
}
